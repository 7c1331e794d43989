//! Messages with their identity, as handlers get them: what `Message` and `KeyedMessage` of `consumerd.handlers` are.
//!
//! To make one of these objects costs a third of making the named tuple. The numbers are made when they are asked for,
//! and whatever else a named tuple can do is left to the one that is made for it. It holds its payload, and not the
//! buffer of the batch.
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyTuple};

/// What the messages of a batch have in common: their partition, and the class of named tuples.
#[pyclass(module = "consumerd_native", frozen)]
pub struct MessageKind {
    partition: Py<PyAny>,
    class: Py<PyAny>,
}

#[pymethods]
impl MessageKind {
    #[new]
    fn new(partition: Py<PyAny>, class: Py<PyAny>) -> Self {
        MessageKind { partition, class }
    }
}

/// Where a message is in its log.
#[derive(Clone, Copy)]
pub struct Place {
    pub offset: i64,
    pub index: u32,
    pub next_offset: i64,
}

/// What messages have since 0.8.
pub struct Keyed {
    pub key: Option<Py<PyBytes>>,
    /// The sum of two numbers of 64 bits.
    pub timestamp: i128,
    pub timestamp_type: Py<PyAny>,
    pub headers: Py<PyAny>,
}

/// One message, which behaves as the named tuple that it stands for.
#[pyclass(module = "consumerd_native", frozen, sequence)]
pub struct Message {
    kind: Py<MessageKind>,
    place: Place,
    payload: Option<Py<PyBytes>>,
    keyed: Option<Box<Keyed>>,
}

impl Message {
    pub fn new(
        kind: Py<MessageKind>,
        place: Place,
        payload: Option<Py<PyBytes>>,
        keyed: Option<Box<Keyed>>,
    ) -> Self {
        Message {
            kind,
            place,
            payload,
            keyed,
        }
    }

    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let partition = self.kind.get().partition.bind(py);
        let Place {
            offset,
            index,
            next_offset,
        } = self.place;
        let payload = self.payload.as_ref().map(|payload| payload.bind(py));
        match &self.keyed {
            None => (partition, offset, index, next_offset, payload).into_pyobject(py),
            Some(keyed) => (
                partition,
                offset,
                index,
                next_offset,
                payload,
                keyed.key.as_ref().map(|key| key.bind(py)),
                keyed.timestamp,
                &keyed.timestamp_type,
                &keyed.headers,
            )
                .into_pyobject(py),
        }
    }

    /// The named tuple.
    fn named<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = self.kind.get().class.bind(py);
        class.call_method1("_make", (self.fields(py)?,))
    }

    fn keyed(&self, name: &'static str) -> PyResult<&Keyed> {
        (self.keyed.as_deref()).ok_or_else(|| PyAttributeError::new_err(name))
    }
}

#[pymethods]
impl Message {
    #[getter]
    fn partition(&self, py: Python<'_>) -> Py<PyAny> {
        self.kind.get().partition.clone_ref(py)
    }

    #[getter]
    fn topic<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.kind.get().partition.bind(py).getattr("topic")
    }

    #[getter]
    fn offset(&self) -> i64 {
        self.place.offset
    }

    #[getter]
    fn index(&self) -> u32 {
        self.place.index
    }

    #[getter]
    fn next_offset(&self) -> i64 {
        self.place.next_offset
    }

    #[getter]
    fn payload(&self, py: Python<'_>) -> Option<Py<PyBytes>> {
        self.payload.as_ref().map(|payload| payload.clone_ref(py))
    }

    #[getter]
    fn value(&self, py: Python<'_>) -> Option<Py<PyBytes>> {
        self.payload(py)
    }

    #[getter]
    fn key(&self, py: Python<'_>) -> Option<Py<PyBytes>> {
        let key = self.keyed.as_ref().and_then(|keyed| keyed.key.as_ref());
        key.map(|key| key.clone_ref(py))
    }

    #[getter]
    fn timestamp(&self) -> i128 {
        self.keyed.as_ref().map_or(-1, |keyed| keyed.timestamp)
    }

    #[getter]
    fn timestamp_type(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.keyed("timestamp_type")?.timestamp_type.clone_ref(py))
    }

    #[getter]
    fn headers(&self, py: Python<'_>) -> Py<PyAny> {
        self.keyed.as_ref().map_or_else(
            || PyTuple::empty(py).into_any().unbind(),
            |keyed| keyed.headers.clone_ref(py),
        )
    }

    /// For `isinstance`, patterns and `dir`.
    #[getter]
    fn __class__(&self, py: Python<'_>) -> Py<PyAny> {
        self.kind.get().class.clone_ref(py)
    }

    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.named(py)?.getattr(name)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Py<PyAny>, Bound<'py, PyTuple>)> {
        Ok((self.__class__(py), self.fields(py)?))
    }

    fn __richcmp__<'py>(
        &self,
        py: Python<'py>,
        other: &Bound<'py, PyAny>,
        operation: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let fields = self.fields(py)?;
        match other.cast::<Message>() {
            Ok(other) => fields.rich_compare(other.get().fields(py)?, operation),
            Err(_) => fields.rich_compare(other, operation),
        }
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.fields(py)?.hash()
    }

    fn __repr__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.named(py)?.repr()?.into_any())
    }

    fn __len__(&self) -> usize {
        if self.keyed.is_some() {
            9
        } else {
            5
        }
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        at: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.fields(py)?.as_any().get_item(at)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.fields(py)?.try_iter()
    }

    fn __add__<'py>(
        &self,
        py: Python<'py>,
        other: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.fields(py)?.as_any().add(other)
    }
}
