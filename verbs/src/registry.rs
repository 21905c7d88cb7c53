//! Which C object is which of ours: for events, which name their object by a pointer.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::process::Origin;

/// Addresses of live objects and the identities that they have here.
///
/// An event may name an object that other code made on the same device, so what it points to is
/// never taken for one of ours before it was found here.
static OBJECTS: LazyLock<Mutex<HashMap<usize, u64>>> = LazyLock::new(Mutex::default);

fn objects() -> std::sync::MutexGuard<'static, HashMap<usize, u64>> {
    // The map is whole after every single operation on it.
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an object findable; to be dropped before the object is destroyed.
#[derive(Debug)]
pub(crate) struct Registered {
    address: usize,
    origin: Origin,
}

impl Registered {
    /// Enters the live object at `object` under `id`.
    pub(crate) fn new<T>(object: *mut T, id: u64, origin: Origin) -> Self {
        let address = object.addr();
        objects().insert(address, id);
        Self { address, origin }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that does not exist.
        if self.origin.is_current() {
            objects().remove(&self.address);
        }
    }
}

/// The identity of an object that an event names, while the event keeps it alive.
pub(crate) fn find<T>(object: *mut T) -> Option<u64> {
    objects().get(&object.addr()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_as_long_as_it_is_entered() {
        let mut object = 0_u8;
        let pointer = &raw mut object;
        assert_eq!(find(pointer), None, "an object of somebody else");
        let origin = Origin::current("test").expect("origin");
        let entry = Registered::new(pointer, 42, origin);
        assert_eq!(find(pointer), Some(42));
        drop(entry);
        assert_eq!(find(pointer), None);
    }
}
