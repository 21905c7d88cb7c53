//! Objects that C code knows by address.

use core::alloc::Layout;
use core::ptr::NonNull;
use std::collections::{BTreeMap, BTreeSet};
use std::prelude::rust_2024::*;
use std::sync::{Mutex, PoisonError};

use super::violation;

/// Memory of a C struct, handed out as a raw pointer.
#[derive(Debug)]
pub(super) struct CBox<T>(NonNull<T>);

// SAFETY: the memory belongs to this object, and the world's lock orders what the fake does with it.
unsafe impl<T> Send for CBox<T> {}

impl<T> CBox<T> {
    pub(super) fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    pub(super) fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Gives the memory up. A stale pointer to it reads a pattern until the next test; under Miri, which finds it by itself,
    /// the memory is freed.
    pub(super) fn retire(self) {
        if cfg!(miri) {
            // SAFETY: the memory came from a box of this type, and this was its only owner.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            return;
        }
        // SAFETY: the memory is a live allocation of this size; nobody reads it as a value of the type any more.
        unsafe {
            self.0
                .as_ptr()
                .cast::<u8>()
                .write_bytes(0xdd, size_of::<T>())
        };
        let retired = Retired(self.0.cast(), Layout::new::<T>());
        RETIRED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(retired);
    }
}

struct Retired(NonNull<u8>, Layout);

// SAFETY: the memory belongs to this object and is only freed.
unsafe impl Send for Retired {}

/// Kept where a leak checker sees it.
static RETIRED: Mutex<Vec<Retired>> = Mutex::new(Vec::new());

/// Frees what was retired: called between tests.
pub(super) fn free_retired() {
    let retired = core::mem::take(&mut *RETIRED.lock().unwrap_or_else(PoisonError::into_inner));
    for Retired(memory, layout) in retired {
        // SAFETY: the memory came from a box of this layout, and it is taken out of the list once.
        unsafe { std::alloc::dealloc(memory.as_ptr(), layout) };
    }
}

/// All objects of one kind, by address.
#[derive(Debug)]
pub(super) struct Table<T> {
    kind: &'static str,
    live: BTreeMap<usize, T>,
    dead: BTreeSet<usize>,
}

impl<T> Table<T> {
    pub(super) const fn new(kind: &'static str) -> Self {
        Self {
            kind,
            live: BTreeMap::new(),
            dead: BTreeSet::new(),
        }
    }

    pub(super) fn insert(&mut self, address: usize, object: T) {
        self.dead.remove(&address);
        self.live.insert(address, object);
    }

    /// The object that `call` was given.
    pub(super) fn of<C>(&mut self, call: &str, object: *mut C) -> &mut T {
        self.at(call, object.addr())
    }

    /// The object at an address that a live object names.
    pub(super) fn at(&mut self, call: &str, address: usize) -> &mut T {
        let (kind, dead) = (self.kind, self.dead.contains(&address));
        match self.live.get_mut(&address) {
            Some(object) => object,
            None if dead => violation(&std::format!(
                "{call} was given a {kind} that was destroyed ({address:#x})"
            )),
            None => violation(&std::format!(
                "{call} was given something that is no {kind} ({address:#x})"
            )),
        }
    }

    pub(super) fn find(&mut self, address: usize) -> Option<&mut T> {
        self.live.get_mut(&address)
    }

    pub(super) fn get(&self, address: usize) -> Option<&T> {
        self.live.get(&address)
    }

    pub(super) fn remove(&mut self, address: usize) -> Option<T> {
        let object = self.live.remove(&address)?;
        self.dead.insert(address);
        Some(object)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&usize, &T)> {
        self.live.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.live.values_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// Takes all objects out and forgets the dead ones.
    pub(super) fn clear(&mut self) -> Vec<T> {
        self.dead.clear();
        core::mem::take(&mut self.live).into_values().collect()
    }
}
