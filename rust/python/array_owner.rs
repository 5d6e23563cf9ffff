//! Arrays in memory of the core, which they keep.

use std::any::Any;

use numpy::ndarray::{ArrayView, Dimension, StrideShape};
use numpy::{Element, PyArray};
use pyo3::prelude::*;

/// The base of arrays: what owns their memory, which lives as long as any of them.
#[pyclass(frozen, module = "gristmill._core")]
pub struct ArrayOwner {
    _owner: Box<dyn Any + Send + Sync>,
}

impl ArrayOwner {
    pub fn new(py: Python<'_>, owner: impl Any + Send + Sync) -> PyResult<Bound<'_, Self>> {
        Bound::new(py, Self { _owner: Box::new(owner) })
    }

    /// An array whose first element is at `first`.
    ///
    /// # Safety
    ///
    /// The owner must own all elements, leave them in place when it is moved, and be nothing by which Rust code reads or
    /// writes them until it is dropped.
    pub unsafe fn array<'py, T: Element, D: Dimension>(
        loan: &Bound<'py, Self>,
        first: *mut T,
        shape: impl Into<StrideShape<D>>,
    ) -> Bound<'py, PyArray<T, D>> {
        // SAFETY: the caller answers for the elements; the loan, the array's base, keeps their owner.
        unsafe {
            let view = ArrayView::from_shape_ptr(shape, first);
            PyArray::borrow_from_array(&view, loan.clone().into_any())
        }
    }
}
