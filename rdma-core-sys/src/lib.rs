//! Raw bindings to libibverbs and librdmacm, with the headers' inline functions in Rust.
