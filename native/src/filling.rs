//! The messages that a producer adds to its open batch, while nothing about them has to be decided.
//!
//! Strategy: a message is added to the lists of the batch, which stay the caller's: it may add others to them in between.
//! What is unusual (a value that is no `bytes`, no room) gives nothing, and the caller decides.
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// The bytes of all values, and of the longest; nothing for what is not a list of bytes and nulls.
#[pyfunction]
pub fn value_sizes(values: &Bound<'_, PyAny>) -> Option<(usize, usize)> {
    let values = values.cast::<PyList>().ok()?;
    let (mut total, mut longest) = (0, 0);
    for value in values.iter() {
        let length = length(&value)?;
        total += length;
        longest = longest.max(length);
    }
    Some((total, longest))
}

/// The number behind the values from `first` on that have at most `size` bytes, `beside` for each included, and those.
///
/// The list is one that `value_sizes` counted; anything else in it ends what fits.
#[pyfunction]
#[pyo3(signature = (values, first, size, beside, /))]
pub fn fitting_values(
    values: &Bound<'_, PyList>,
    first: usize,
    size: isize,
    beside: usize,
) -> (usize, usize) {
    let size = usize::try_from(size).unwrap_or(0);
    let (mut stop, mut used) = (first, 0);
    while let Some(length) = values.get_item(stop).ok().and_then(|value| length(&value)) {
        let more = beside + length;
        if more > size - used {
            break;
        }
        used += more;
        stop += 1;
    }
    (stop, used)
}

/// Of a value; a null has none.
fn length(value: &Bound<'_, PyAny>) -> Option<usize> {
    if value.is_none() {
        return Some(0);
    }
    Some(value.cast::<PyBytes>().ok()?.as_bytes().len())
}

/// The future outcome of a message: its batch, and its number in it.
///
/// `settle(batch, number)` gives the generator that waits for it.
#[pyclass(module = "consumerd_native", frozen, freelist = 256)]
pub struct Delivery {
    #[pyo3(get)]
    batch: Py<PyAny>,
    #[pyo3(get)]
    number: usize,
    wait: Py<PyAny>,
}

#[pymethods]
impl Delivery {
    #[getter]
    fn done<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.batch.bind(py).getattr("outcome")?.call_method0("done")
    }

    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.wait.bind(py).call1((&self.batch, self.number))
    }
}

/// Adds messages to `values` and `times` of `batch`, as long as they have at most `room` bytes with `overhead` for each.
#[pyclass(module = "consumerd_native")]
pub struct Filling {
    #[pyo3(get)]
    batch: Py<PyAny>,
    values: Py<PyList>,
    times: Py<PyList>,
    /// What a delivery waits with.
    wait: Py<PyAny>,
    /// The seconds since the epoch; the system's where there is none.
    clock: Option<Py<PyAny>>,
    overhead: usize,
    #[pyo3(get, set)]
    room: usize,
    /// The last time, as a number of both languages: many messages have the same.
    last: (i64, Py<PyAny>),
}

#[pymethods]
impl Filling {
    #[new]
    #[pyo3(signature = (batch, values, times, wait, clock, overhead, /))]
    fn new(
        py: Python<'_>,
        batch: Py<PyAny>,
        values: Py<PyList>,
        times: Py<PyList>,
        wait: Py<PyAny>,
        clock: Option<Py<PyAny>>,
        overhead: usize,
    ) -> PyResult<Self> {
        Ok(Filling {
            batch,
            values,
            times,
            wait,
            clock,
            overhead,
            room: 0,
            last: (0, 0_i64.into_pyobject(py)?.into_any().unbind()),
        })
    }

    /// Add a message, of now if it has no time; gives nothing, and adds nothing, if that is not for this to decide.
    #[pyo3(signature = (value, time, /))]
    fn add(
        &mut self,
        value: &Bound<'_, PyAny>,
        time: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Delivery>> {
        let py = value.py();
        let Ok(bytes) = value.cast::<PyBytes>() else {
            return Ok(None);
        };
        let size = self.overhead + bytes.as_bytes().len();
        if size > self.room {
            return Ok(None);
        }
        let time = match time {
            Some(time) => time.clone(),
            None => self.now(py)?,
        };
        let values = self.values.bind(py);
        let number = values.len();
        values.append(bytes)?;
        self.times.bind(py).append(time)?;
        self.room -= size;
        Ok(Some(Delivery {
            batch: self.batch.clone_ref(py),
            number,
            wait: self.wait.clone_ref(py),
        }))
    }
}

impl Filling {
    /// Milliseconds since the epoch.
    fn now<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let now = match &self.clock {
            None => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX)),
            // As Python's `int`, which cuts off.
            #[allow(clippy::cast_possible_truncation)]
            Some(clock) => (clock.bind(py).call0()?.extract::<f64>()? * 1000.0) as i64,
        };
        if now != self.last.0 {
            self.last = (now, now.into_pyobject(py)?.into_any().unbind());
        }
        Ok(self.last.1.bind(py).clone())
    }
}
