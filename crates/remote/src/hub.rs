//! The Hugging Face Hub: where it is, and who asks.

use std::path::PathBuf;

use object_store::{HeaderMap, HeaderValue};

const ENDPOINT: &str = "https://huggingface.co";

/// Where the hub is, and the token with which it is asked.
#[derive(Clone, PartialEq, Eq)]
pub struct Hub {
    /// The URL of its server, without a slash at the end.
    pub endpoint: String,
    /// None: only public data sets are read.
    pub token: Option<String>,
}

impl Hub {
    /// The hub of the options `hf_endpoint` and `hf_token`; else that of the environment, as the hub's own library
    /// reads it: `HF_ENDPOINT`, `HF_TOKEN`, and the file that `hf auth login` writes.
    pub fn find(storage: &[(String, String)]) -> Self {
        let option =
            |wanted: &str| storage.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
        let endpoint =
            option("hf_endpoint").or_else(|| variable("HF_ENDPOINT")).unwrap_or_else(|| ENDPOINT.to_owned());
        let token = option("hf_token").or_else(|| variable("HF_TOKEN")).or_else(token_of_file);
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        Self { endpoint: endpoint.trim_end_matches('/').to_owned(), token }
    }

    /// Whether it has an option of this name.
    pub(crate) fn has_option(name: &str) -> bool {
        ["hf_endpoint", "hf_token"].contains(&name)
    }

    /// The URL of the folder of all files of a repository, from `hf://datasets/owner/name@revision`.
    pub(crate) fn folder(&self, root: &str) -> String {
        let repository = root.strip_prefix("hf://").unwrap_or(root);
        let (repository, revision) = repository.split_once('@').unwrap_or((repository, "main"));
        format!("{}/{repository}/resolve/{revision}", self.endpoint)
    }

    /// The headers of a request. The error says that the token cannot be one.
    pub(crate) fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| "hf_token: expected a token of visible characters".to_owned())?;
            value.set_sensitive(true);
            headers.insert("authorization", value);
        }
        Ok(headers)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn token_of_file() -> Option<String> {
    let home = || variable("HOME").map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(home()?.join(".cache")));
    let of_hub = || variable("HF_HOME").map(PathBuf::from).or_else(|| Some(cache()?.join("huggingface")));
    let path = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(of_hub()?.join("token")))?;
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_revision_are_in_a_folder() {
        let storage =
            [("hf_endpoint", "http://h/"), ("hf_token", "x\n")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let hub = Hub::find(&storage);
        assert_eq!(hub.folder("hf://datasets/o/n@0f"), "http://h/datasets/o/n/resolve/0f");
        assert_eq!(hub.folder("hf://datasets/o/n"), "http://h/datasets/o/n/resolve/main");
        assert_eq!(hub.headers().unwrap()["authorization"], "Bearer x");
    }
}
