//! Compiles `src/jpeg.c` against the headers of libjpeg-turbo, which mozjpeg-sys builds.

fn main() {
    println!("cargo:rerun-if-changed=src/jpeg.c");
    let is_x86 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    if is_x86 && std::process::Command::new("nasm").arg("-v").output().is_err() {
        println!(
            "cargo:warning=nasm is not on the path: JPEG will be decoded without vector code, at half the speed"
        );
    }
    let headers = std::env::var_os("DEP_JPEG_INCLUDE").expect("mozjpeg-sys reports its headers");
    cc::Build::new()
        .file("src/jpeg.c")
        .includes(std::env::split_paths(&headers))
        .warnings(true)
        .compile("gristmill_jpeg");
}
