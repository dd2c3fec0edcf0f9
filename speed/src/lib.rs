//! The compiled core of dlspark: what a profile found to cost processor time, done over whole buffers.
//!
//! Every function has a twin in Python, which decides: on anything unusual a function here returns `None`, and the
//! twin does the work, or words the error. So both have the same results and the same errors, and only Python has the
//! words. Nothing here starts a thread, has a state of its own, or outlives its call: a fork changes nothing.
//!
//! A file has one subject. `buffers` alone touches memory of Python's, and `objects` alone calls functions of its classes;
//! all else is safe code over slices.

use pyo3::prelude::*;

mod buffers;
mod digests;
mod frames;
mod objects;
mod proxy_frames;
mod records;
mod requests;

/// The module as Python imports it; `dlspark_speed.pyi` has its types.
#[pymodule]
mod dlspark_speed {
    use super::*;

    #[pymodule_export]
    use super::digests::{package_entry, verify_entry};
    #[pymodule_export]
    use super::frames::append_adds;
    #[pymodule_export]
    use super::proxy_frames::take_writes;
    #[pymodule_export]
    use super::records::{lay_out_records, make_records, measure_records, record_columns};
    #[pymodule_export]
    use super::requests::encode_adds;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Raised with every change of a function that is there: dlspark takes only the number it was written for
        // (metadata/foundation/compiled.py).
        module.add("INTERFACE", 2)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
