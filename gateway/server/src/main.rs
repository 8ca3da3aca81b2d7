//! The gateway's program, under its three names.

fn main() {
    let args = std::env::args().skip(1).collect();
    std::process::exit(smg::main_from_args(args));
}
