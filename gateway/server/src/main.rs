//! The gateway's program, under its three names.

fn main() {
    std::process::exit(smg::main_from_args(std::env::args_os().skip(1)));
}
