//! Reading texts for benchmarks and comparisons: gzipped JSONL shards below a folder.
#![allow(clippy::unwrap_used)] // a developer tool: any failure may abort it

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

/// The bytes of a file, inflated when its name ends in `.gz`.
pub fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_some_and(|extension| extension == "gz") {
        MultiGzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    } else {
        file.read_to_end(&mut bytes).unwrap();
    }
    bytes
}

/// All `.json.gz` files below a folder, sorted.
pub fn shards(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(".json.gz") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The texts of a shard: the field `raw_content` or `text` of each line.
pub fn texts(shard: &Path) -> Vec<String> {
    let lines = BufReader::new(MultiGzDecoder::new(File::open(shard).unwrap())).lines();
    lines
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            let text = record.get("raw_content").or_else(|| record.get("text"));
            text.and_then(|text| text.as_str()).unwrap_or_default().to_owned()
        })
        .collect()
}
