//! oarlock-conformance
