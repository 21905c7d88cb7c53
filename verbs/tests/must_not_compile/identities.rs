//! An event says which object it is about by an identity, which neither keeps it alive nor can be made up.

use verbs::{CqId, SrqId};

fn made_up() {
    let _ = CqId(1); //~ E0423
    let _ = SrqId(1); //~ E0423
}

fn main() {}
