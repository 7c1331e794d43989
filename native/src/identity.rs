//! Messages with their identity, as handlers get them: what `Message` and `KeyedMessage` of `consumerd.handlers` are.
//!
//! To make one of these objects costs a third of making the named tuple. The numbers are made when they are asked for,
//! and whatever else a named tuple can do is left to the one that is made for it. It holds its payload, and not the
//! buffer of the batch. One that nobody holds any more when the next list is asked for becomes a message of that list.
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyTuple};

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

/// What a message has beside its kind.
pub struct Fields {
    pub place: Place,
    pub payload: Option<Py<PyBytes>>,
    pub keyed: Option<Box<Keyed>>,
}

/// One message, which behaves as the named tuple that it stands for.
#[pyclass(module = "consumerd_native", sequence)]
pub struct Message {
    kind: Py<MessageKind>,
    fields: Fields,
}

/// Makes the lists of a batch's messages.
pub struct Lists {
    kind: Py<MessageKind>,
    /// The one that was returned last, unless somebody keeps messages.
    last: Last,
}

enum Last {
    None,
    List(Py<PyList>),
    Kept,
}

impl Lists {
    pub fn new(kind: Py<MessageKind>) -> Self {
        Lists {
            kind,
            last: Last::None,
        }
    }

    /// A list of `count` messages, each with the next result of `make`.
    ///
    /// It is the last one, if nobody else holds that, with those of its messages that nobody else holds.
    #[inline]
    pub fn list<'py>(
        &mut self,
        py: Python<'py>,
        count: usize,
        mut make: impl FnMut() -> PyResult<Fields>,
    ) -> PyResult<Bound<'py, PyList>> {
        let again = self.take_last(py)?.filter(|list| list.len() == count);
        let mut found = Vec::with_capacity(if again.is_some() { 0 } else { count });
        for number in 0..count {
            let fields = make()?;
            match &again {
                Some(list) => self.put(list, number, fields)?,
                None => found.push(self.message(py, fields)?),
            }
        }
        let list = again.map_or_else(|| PyList::new(py, found), Ok)?;
        if !matches!(self.last, Last::Kept) {
            self.last = Last::List(list.clone().unbind());
        }
        Ok(list)
    }

    fn message<'py>(&self, py: Python<'py>, fields: Fields) -> PyResult<Bound<'py, Message>> {
        let kind = self.kind.clone_ref(py);
        Bound::new(py, Message { kind, fields })
    }

    /// The last list, if it can be used again. Nothing is tried any more after one that is still held: who keeps messages
    /// keeps nearly all.
    fn take_last<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let list = match std::mem::replace(&mut self.last, Last::Kept) {
            Last::List(list) => list.into_bound(py),
            other => {
                self.last = other;
                return Ok(None);
            }
        };
        // The list, and this function.
        if holders(&list) > 1 || holders(&list.get_item(0)?) > 2 {
            return Ok(None);
        }
        self.last = Last::None;
        Ok(Some(list))
    }

    /// Make message `number` of `list` one with these fields, or put another in its place.
    fn put(&self, list: &Bound<'_, PyList>, number: usize, fields: Fields) -> PyResult<()> {
        let found = list.get_item(number)?;
        // The list, and this function.
        if holders(&found) == 2 {
            if let Ok(mut message) = found.cast_exact::<Message>()?.try_borrow_mut() {
                message.fields = fields;
                return Ok(());
            }
        }
        list.set_item(number, self.message(list.py(), fields)?)
    }
}

/// How many references to an object there are.
#[allow(deprecated)] // what is to be called in place of it takes unsafe code
fn holders<T>(object: &Bound<'_, T>) -> isize {
    object.as_any().get_refcnt()
}

impl Message {
    fn tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let partition = self.kind.get().partition.bind(py);
        let Place {
            offset,
            index,
            next_offset,
        } = self.fields.place;
        let payload = self.fields.payload.as_ref().map(|payload| payload.bind(py));
        match &self.fields.keyed {
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
        class.call_method1("_make", (self.tuple(py)?,))
    }

    fn keyed(&self, name: &'static str) -> PyResult<&Keyed> {
        (self.fields.keyed.as_deref()).ok_or_else(|| PyAttributeError::new_err(name))
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
        self.fields.place.offset
    }

    #[getter]
    fn index(&self) -> u32 {
        self.fields.place.index
    }

    #[getter]
    fn next_offset(&self) -> i64 {
        self.fields.place.next_offset
    }

    #[getter]
    fn payload(&self, py: Python<'_>) -> Option<Py<PyBytes>> {
        self.fields
            .payload
            .as_ref()
            .map(|payload| payload.clone_ref(py))
    }

    #[getter]
    fn value(&self, py: Python<'_>) -> Option<Py<PyBytes>> {
        self.payload(py)
    }

    #[getter]
    fn key(&self, py: Python<'_>) -> Option<Py<PyBytes>> {
        let key = self
            .fields
            .keyed
            .as_ref()
            .and_then(|keyed| keyed.key.as_ref());
        key.map(|key| key.clone_ref(py))
    }

    #[getter]
    fn timestamp(&self) -> i128 {
        self.fields
            .keyed
            .as_ref()
            .map_or(-1, |keyed| keyed.timestamp)
    }

    #[getter]
    fn timestamp_type(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.keyed("timestamp_type")?.timestamp_type.clone_ref(py))
    }

    #[getter]
    fn headers(&self, py: Python<'_>) -> Py<PyAny> {
        self.fields.keyed.as_ref().map_or_else(
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
        Ok((self.__class__(py), self.tuple(py)?))
    }

    fn __richcmp__<'py>(
        &self,
        py: Python<'py>,
        other: &Bound<'py, PyAny>,
        operation: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let fields = self.tuple(py)?;
        match other.cast::<Message>() {
            Ok(other) => fields.rich_compare(other.try_borrow()?.tuple(py)?, operation),
            Err(_) => fields.rich_compare(other, operation),
        }
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.tuple(py)?.hash()
    }

    fn __repr__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.named(py)?.repr()?.into_any())
    }

    fn __len__(&self) -> usize {
        if self.fields.keyed.is_some() {
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
        self.tuple(py)?.as_any().get_item(at)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.tuple(py)?.try_iter()
    }

    fn __add__<'py>(
        &self,
        py: Python<'py>,
        other: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.tuple(py)?.as_any().add(other)
    }
}
