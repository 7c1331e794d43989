//! The native codec of consumerd: what is worth a boundary between languages, and nothing else.
//!
//! Strategy: native code handles what is whole, intact and within its limits, and stops in front of anything else, which
//! the pure code then judges. So there is one place for every verdict and for every error's words, and a difference
//! could only be something that is accepted here and refused there.
use pyo3::prelude::*;
use pyo3::types::PySequence;

mod arrow;
mod encode;
mod fetch;
mod filling;
mod hash;
mod identity;
mod inflate;
mod limits;
mod lines;
mod lz4;
mod message;
mod payloads;
mod records;
mod verify;
mod zstandard;

/// The codec that `consumerd.base.native` loads.
#[pymodule]
fn consumerd_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // What `consumerd` checks before it uses any of this: raised with every change of a signature.
    module.add("INTERFACE", 15)?;
    module.add_function(wrap_pyfunction!(verify::verify, module)?)?;
    module.add_function(wrap_pyfunction!(records::checking::check_batches, module)?)?;
    module.add_function(wrap_pyfunction!(records::kinds::same_kind, module)?)?;
    module.add_function(wrap_pyfunction!(encode::encode_set, module)?)?;
    module.add_function(wrap_pyfunction!(encode::encode_produce, module)?)?;
    module.add_function(wrap_pyfunction!(encode::copy_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(encode::encode_messages, module)?)?;
    module.add_function(wrap_pyfunction!(encode::encode_records, module)?)?;
    module.add_function(wrap_pyfunction!(encode::encode_batch, module)?)?;
    module.add_function(wrap_pyfunction!(fetch::fetch_parts, module)?)?;
    module.add_function(wrap_pyfunction!(records::read_records, module)?)?;
    module.add_function(wrap_pyfunction!(filling::value_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(filling::fitting_values, module)?)?;
    module.add_function(wrap_pyfunction!(hash::row_hashes, module)?)?;
    module.add_class::<filling::Delivery>()?;
    module.add_class::<filling::Filling>()?;
    module.add_class::<identity::MessageKind>()?;
    PySequence::register::<identity::Message>(module.py())?; // so that it matches patterns of sequences
    module.add_class::<limits::Limits>()?;
    module.add_class::<payloads::Payloads>()?;
    module.add_class::<records::Records>()
}
