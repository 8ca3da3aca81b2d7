//! Generates message and service types from the repository's `.proto` files, without `protoc`.

use std::error::Error;

const PROTO_DIR: &str = "../../proto";
const PROTO_FILES: [&str; 3] = ["common.proto", "sglang_scheduler.proto", "sglang_engine.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in PROTO_FILES {
        println!("cargo:rerun-if-changed={PROTO_DIR}/{file}");
    }
    let descriptors = protox::compile(PROTO_FILES, [PROTO_DIR])?;
    tonic_prost_build::configure()
        // Sorted maps make the encoding of a message reproducible.
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    Ok(())
}
