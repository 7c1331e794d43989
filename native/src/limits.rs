//! How much a decoder believes and spends: `consumerd.wire.v07.Limits`.
use pyo3::prelude::*;

/// Deeper nesting is left to the pure code, whatever the limit: recursion costs stack.
const DEEPEST: usize = 64;

#[pyclass(frozen, module = "consumerd_native")]
#[derive(Clone)]
pub struct Limits {
    /// Largest payload of an outer message.
    pub max_message_bytes: usize,
    /// What one wrapper may decompress to, with all that is nested in it.
    pub max_wrapper_bytes: usize,
    /// After which a batch takes no further wrapper: decompressed bytes, and memory.
    pub max_decompressed_bytes: usize,
    pub max_batch_bytes: usize,
    pub max_depth: usize,
    /// Compressed pieces nested in one wrapper, beside those that its size allows.
    pub max_pieces: usize,
}

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(signature = (*, max_message_bytes, max_wrapper_bytes, max_decompressed_bytes, max_batch_bytes, max_depth, max_pieces))]
    fn new(
        max_message_bytes: usize,
        max_wrapper_bytes: usize,
        max_decompressed_bytes: usize,
        max_batch_bytes: usize,
        max_depth: usize,
        max_pieces: usize,
    ) -> Self {
        Limits {
            max_message_bytes,
            max_wrapper_bytes,
            max_decompressed_bytes,
            max_batch_bytes,
            max_depth: max_depth.min(DEEPEST),
            max_pieces,
        }
    }
}
