//! Memory of Python's as slices: bytes, bytearray, memoryview, numpy and Arrow, without a copy.
//!
//! The buffer protocol is part of the stable ABI from Python 3.11 on. In 3.10, the one older release that this module
//! loads in, it has the same functions and the same structure (`Include/cpython/object.h`), and that release does not
//! change any more; they were only not promised yet. So both are declared here instead of taken from the bindings,
//! which leave them out for 3.10; `speed/README.md` says how that is tested.
//!
//! A view is taken with the interpreter held, and no code of Python's runs while it is read, so nothing changes under
//! it. It is released when it is dropped, on every way out of a function.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

/// `Py_buffer` of CPython 3.10, and of the stable ABI since 3.11.
#[repr(C)]
struct RawView {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: ffi::Py_ssize_t,
    itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

/// `PyBUF_SIMPLE`: bytes one behind the other, whatever their type; others are refused with BufferError.
const SIMPLE: c_int = 0;
/// `PyBUF_WRITABLE`: the same, and they may be written.
const WRITABLE: c_int = 1;

extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut RawView, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawView);
}

/// A view that is held; while it is, the object neither frees nor moves the memory.
struct Held<'py> {
    // In a box: an exporter may keep the structure's address until it is released.
    view: Box<RawView>,
    _interpreter: PhantomData<Python<'py>>,
}

impl<'py> Held<'py> {
    fn take(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<RawView>::zeroed());
        // SAFETY: the object is alive and the interpreter held (`Bound`); the structure has the layout that the call
        // fills in, and is written by it alone.
        let status = unsafe { PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: zeroed bytes are valid for every field, and the call has succeeded.
        let view = unsafe { Box::from_raw(Box::into_raw(view).cast::<RawView>()) };
        Ok(Held { view, _interpreter: PhantomData })
    }

    /// Length and start; the start of nothing may be no address at all.
    fn parts(&self) -> Option<(*mut u8, usize)> {
        match usize::try_from(self.view.len) {
            Ok(length) if length > 0 && !self.view.buf.is_null() => Some((self.view.buf.cast(), length)),
            _ => None,
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: it was filled in by PyObject_GetBuffer and is released once; the interpreter is held, for the
        // lifetime is that of its token.
        unsafe { PyBuffer_Release(&mut *self.view) }
    }
}

/// Bytes to be read.
pub struct Input<'py>(Held<'py>);

impl<'py> Input<'py> {
    /// Take the bytes of `object`, or raise what Python raises for an object without (TypeError, BufferError).
    pub fn take(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Held::take(object, SIMPLE).map(Input)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self.0.parts() {
            // SAFETY: so many bytes are there and stay while the view is held; no code of Python's runs meanwhile,
            // and `Results::take` refuses memory that an input shares.
            Some((start, length)) => unsafe { std::slice::from_raw_parts(start, length) },
            None => &[],
        }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Input<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Input::take(&object)
    }
}

/// Bytes to be written: arrays that the caller has made for the results of one call.
pub struct Results<'py, const N: usize>([Held<'py>; N]);

impl<'py, const N: usize> Results<'py, N> {
    /// Take the bytes of `objects`, which must let themselves be written. `inputs` are all views that the call reads:
    /// ValueError where memory is shared with one of them, or by two results.
    pub fn take<'a>(
        objects: [&Bound<'py, PyAny>; N],
        inputs: impl IntoIterator<Item = &'a Input<'py>> + Clone,
    ) -> PyResult<Self>
    where
        'py: 'a,
    {
        let mut taken = Vec::with_capacity(N);
        for object in objects {
            let held = Held::take(object, WRITABLE)?;
            let shared = |other: &Held<'_>| match (held.parts(), other.parts()) {
                (Some((one, size)), Some((two, other_size))) => {
                    (one as usize) < two as usize + other_size && (two as usize) < one as usize + size
                }
                _ => false,
            };
            if taken.iter().any(shared) || inputs.clone().into_iter().any(|one| shared(&one.0)) {
                return Err(PyValueError::new_err("an array for results shares memory with another array"));
            }
            taken.push(held);
        }
        match taken.try_into() {
            Ok(held) => Ok(Results(held)),
            Err(_) => Err(PyValueError::new_err("arrays for results are missing")),
        }
    }

    /// The bytes of each.
    pub fn slices(&mut self) -> [&mut [u8]; N] {
        self.0.each_mut().map(|held| match held.parts() {
            // SAFETY: so many bytes are there, may be written, and stay while the view is held; `take` has refused
            // memory that two of the call's views share, and no code of Python's runs meanwhile.
            Some((start, length)) => unsafe { std::slice::from_raw_parts_mut(start, length) },
            None => &mut [],
        })
    }
}
