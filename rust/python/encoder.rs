//! `_core.Encoder`.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyUnicodeDecodeError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyString};

use super::array_owner::ArrayOwner;
use super::error::guarded;
use super::signals::Signals;
use crate::encode::{self, EncoderOptions, Engine, SpecialTokens};

/// A tokenizer that produces the ids of the `tokenizers` library.
#[pyclass(frozen, module = "gristmill._core")]
pub struct Encoder {
    inner: encode::Encoder,
}

/// A text in either form that Python has for it. The interpreter makes the UTF-8 of a `str` once, and keeps it there.
enum Text {
    Str(PyBackedStr),
    Utf8(PyBackedBytes),
}

impl<'py> FromPyObject<'_, 'py> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            object.extract().map(Self::Str)
        } else {
            Ok(Self::Utf8(object.extract()?))
        }
    }
}

impl Text {
    fn as_str(&self, py: Python<'_>) -> PyResult<&str> {
        match self {
            Self::Str(text) => Ok(text),
            Self::Utf8(bytes) => simdutf8::basic::from_utf8(bytes).or_else(|_| {
                // simdutf8 is fast, and this one tells where.
                std::str::from_utf8(bytes).map_err(|e| PyUnicodeDecodeError::new_err_from_utf8(py, bytes, e))
            }),
        }
    }
}

type Ids<'py> = Bound<'py, PyArray1<i32>>;
type Offsets<'py> = Bound<'py, PyArray1<i64>>;

#[pymethods]
impl Encoder {
    #[new]
    fn new(
        py: Python<'_>,
        json: &[u8],
        special_tokens_as_text: bool,
        reference: bool,
        cache_bytes: usize,
    ) -> PyResult<Self> {
        let options = EncoderOptions {
            special_tokens_in_text: if special_tokens_as_text {
                SpecialTokens::Text
            } else {
                SpecialTokens::Id
            },
            engine: if reference { Engine::Reference } else { Engine::Fast },
            cache_bytes,
            ..EncoderOptions::default()
        };
        let inner = guarded(py, || Ok(encode::Encoder::with_options(json, options)?))?;
        Ok(Self { inner })
    }

    /// The tokenizer.json that it was created from.
    #[getter]
    fn json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.inner.json())
    }

    /// Bytes shared by all threads, the initial bytes of one thread, and the bound on those.
    fn memory(&self, py: Python<'_>) -> PyResult<(usize, usize, usize)> {
        let memory = guarded(py, || Ok(self.inner.memory()))?;
        Ok((memory.shared, memory.worker, memory.worker_bound))
    }

    fn encode<'py>(&self, py: Python<'py>, text: Text) -> PyResult<Ids<'py>> {
        let text = text.as_str(py)?;
        let ids = guarded(py, || Ok(self.inner.encode(text)?))?;
        as_array(py, ids)
    }

    /// The texts' ids one after another, and the offset at which each text's ids begin.
    fn encode_batch<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<Text>,
        threads: usize,
    ) -> PyResult<(Ids<'py>, Offsets<'py>)> {
        let texts = texts.iter().map(|text| text.as_str(py)).collect::<PyResult<Vec<_>>>()?;
        let mut signals = Signals::new();
        let encoded =
            guarded(py, || Ok(self.inner.encode_batch(&texts, threads, || signals.have_raised())?))?;
        signals.raised()?;
        let (ids, offsets) = encoded.unwrap_or_default();
        Ok((as_array(py, ids)?, PyArray1::from_vec(py, offsets)))
    }

    /// The texts' ids one after another, the offset at which each text's ids begin, and the first character of each
    /// token and the one behind its last, one after another.
    fn encode_with_offsets<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<Text>,
    ) -> PyResult<(Ids<'py>, Offsets<'py>, Offsets<'py>)> {
        let texts = texts.iter().map(|text| text.as_str(py)).collect::<PyResult<Vec<_>>>()?;
        let (mut ids, mut borders, mut spans) = (Vec::new(), vec![0], Vec::new());
        let mut signals = Signals::new();
        guarded(py, || {
            for text in texts {
                if signals.have_raised() {
                    break;
                }
                let (own, offsets) = self.inner.encode_with_offsets(text)?;
                ids.extend(own);
                borders.push(ids.len() as i64);
                spans.extend(offsets.iter().flat_map(|(start, end)| [*start as i64, *end as i64]));
            }
            Ok(())
        })?;
        signals.raised()?;
        Ok((as_array(py, ids)?, PyArray1::from_vec(py, borders), PyArray1::from_vec(py, spans)))
    }

    fn decode(&self, py: Python<'_>, ids: PyReadonlyArray1<'_, u32>) -> PyResult<String> {
        let ids = ids.as_array().to_vec();
        Ok(guarded(py, || Ok(self.inner.decode(&ids)?))?)
    }

    fn token_to_id(&self, py: Python<'_>, token: &str) -> PyResult<Option<u32>> {
        Ok(guarded(py, || Ok(self.inner.token_to_id(token)))?)
    }

    fn id_to_token(&self, py: Python<'_>, token_id: u32) -> PyResult<Option<String>> {
        Ok(guarded(py, || Ok(self.inner.id_to_token(token_id)))?)
    }

    #[getter]
    fn engine(&self) -> &'static str {
        match self.inner.engine() {
            Engine::Fast => "fast",
            Engine::Reference => "reference",
        }
    }

    #[getter]
    fn engine_reason(&self) -> &str {
        self.inner.engine_reason()
    }

    #[getter]
    fn model(&self) -> &str {
        self.inner.model()
    }

    #[getter]
    fn dropout(&self, py: Python<'_>) -> PyResult<Option<f32>> {
        Ok(guarded(py, || Ok(self.inner.dropout()))?)
    }

    /// Why special tokens cannot be read as text in some parts of a text, if they cannot.
    #[getter]
    fn recognises_special_everywhere(&self) -> Option<String> {
        self.inner.recognises_special_everywhere()
    }

    /// Two added tokens of which either may be found, if there are such.
    #[getter]
    fn ambiguous_tokens(&self, py: Python<'_>) -> PyResult<Option<(&str, &str)>> {
        Ok(guarded(py, || Ok(self.inner.ambiguous_tokens()))?)
    }

    #[getter]
    fn vocab_size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(guarded(py, || Ok(self.inner.vocab_size()))?)
    }

    #[getter]
    fn largest_id(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(guarded(py, || Ok(self.inner.largest_id()))?)
    }
}

impl Encoder {
    /// The shared tokenizer.
    pub fn inner(&self) -> &encode::Encoder {
        &self.inner
    }
}

/// The ids as int32 in the memory that they are in.
fn as_array(py: Python<'_>, mut ids: Vec<u32>) -> PyResult<Ids<'_>> {
    let (first, count) = (ids.as_mut_ptr().cast(), ids.len());
    let loan = ArrayOwner::new(py, ids)?;
    // SAFETY: these are the ids, which nothing but the loan has from here on. Both types of number have the same size,
    // and any bits are valid.
    Ok(unsafe { ArrayOwner::array(&loan, first, count) })
}
