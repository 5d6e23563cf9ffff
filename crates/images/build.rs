//! Compiles `src/jpeg.c` against the headers of libjpeg-turbo, which mozjpeg-sys builds.

fn main() {
    println!("cargo:rerun-if-changed=src/jpeg.c");
    let headers = std::env::var_os("DEP_JPEG_INCLUDE").expect("mozjpeg-sys reports its headers");
    cc::Build::new()
        .file("src/jpeg.c")
        .includes(std::env::split_paths(&headers))
        .warnings(true)
        .compile("gristmill_jpeg");
}
