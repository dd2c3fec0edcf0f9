//! Objects of Python's classes made in bulk: by the functions that the interpreter itself calls, without the tuples of
//! arguments and the lookups with which Python code reaches them.
//!
//! Only whoever holds no view of memory may make objects: it may have the collector run, and that any code of Python's.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// What `PyType_GetSlot` has for a type; None where the type has no such function.
fn slot(kind: &Bound<'_, PyType>, which: i32) -> Option<*mut c_void> {
    // SAFETY: the type is alive and the interpreter held; any number of a slot may be asked for.
    let found = unsafe { ffi::PyType_GetSlot(kind.as_type_ptr(), which) };
    (!found.is_null()).then_some(found)
}

/// Makes instances of a class by its `__new__`, without arguments; `__init__` is not called.
pub struct Class<'py> {
    kind: Bound<'py, PyType>,
    new: ffi::newfunc,
    nothing: Bound<'py, PyTuple>,
}

impl<'py> Class<'py> {
    /// Take a class; None where it has no instances.
    pub fn take(kind: &Bound<'py, PyType>) -> Option<Self> {
        let found = slot(kind, ffi::Py_tp_new)?;
        // SAFETY: what is in this slot is a function of this type.
        let new = unsafe { std::mem::transmute::<*mut c_void, ffi::newfunc>(found) };
        Some(Class { kind: kind.clone(), new, nothing: PyTuple::empty(kind.py()) })
    }

    /// Make one.
    pub fn make(&self) -> PyResult<Bound<'py, PyAny>> {
        let py = self.kind.py();
        // SAFETY: the function is the class's own, given the class, a tuple of arguments and no names, as the interpreter
        // calls it; what it returns is a new reference, or null with an error set.
        unsafe {
            let made = (self.new)(self.kind.as_type_ptr(), self.nothing.as_ptr(), ptr::null_mut());
            Bound::from_owned_ptr_or_err(py, made)
        }
    }
}

/// Stores one field of objects, by the descriptor that their class has for it.
pub struct Field<'py> {
    descriptor: Bound<'py, PyAny>,
    set: ffi::descrsetfunc,
}

impl<'py> Field<'py> {
    /// Take a descriptor; None for an object that stores nothing.
    pub fn take(descriptor: &Bound<'py, PyAny>) -> Option<Self> {
        let found = slot(&descriptor.get_type(), ffi::Py_tp_descr_set)?;
        // SAFETY: what is in this slot is a function of this type.
        let set = unsafe { std::mem::transmute::<*mut c_void, ffi::descrsetfunc>(found) };
        Some(Field { descriptor: descriptor.clone(), set })
    }

    /// Store `value` in `object`; an error where the descriptor is another class's.
    pub fn store(&self, object: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> PyResult<()> {
        // SAFETY: the function is the descriptor's own, given that, an object and a value, all alive, as the interpreter
        // calls it; it looks itself whether the object is of its class, and takes its own reference to the value.
        let failed = unsafe { (self.set)(self.descriptor.as_ptr(), object.as_ptr(), value.as_ptr()) };
        if failed == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(object.py()))
        }
    }
}

/// Hide an object from the collector, which looks for cycles alone: for one that has only what can be part of none.
///
/// CPython does so itself with tuples of numbers. It is freed as ever with its last reference; in a cycle it would leak.
pub fn keep_from_collector(object: &Bound<'_, PyAny>) {
    // SAFETY: the object is alive and the interpreter held; only what the collector does see is taken from it.
    unsafe {
        if ffi::PyObject_GC_IsTracked(object.as_ptr()) == 1 {
            ffi::PyObject_GC_UnTrack(object.as_ptr().cast());
        }
    }
}
