//! The messages that a producer adds to its open batch, while nothing about them has to be decided.
//!
//! Strategy: a message is added to the lists of the batch, which stay the caller's: it may add others to them in between.
//! What is unusual (a value that is no `bytes`, no room) gives nothing, and the caller decides.
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// The future outcome of a message: its batch, and its number in it.
///
/// `settle(batch, number)` gives the generator that waits for it.
#[pyclass(module = "consumerd_native", frozen)]
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
