//! The LD_PRELOAD shim: programs use sessions without knowing.
