"""Named extension points; imports nothing but the standard library."""
