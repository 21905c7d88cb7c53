//! What a completion says beyond its status holds only when it was a success.

use verbs::WorkCompletion;

fn fields(completion: &WorkCompletion) {
    let _ = completion.opcode(); //~ E0599
    let _ = completion.byte_len(); //~ E0599
    let _ = completion.imm(); //~ E0599
    let _ = completion.flags(); //~ E0599
    let _ = completion.src_qp(); //~ E0599
    let _ = completion.invalidated_rkey(); //~ E0599
    let _ = completion.0; //~ E0616
}

fn after_a_look(completion: &WorkCompletion) {
    if let Ok(success) = completion.result() {
        let _ = (success.opcode(), success.byte_len(), success.imm());
    }
}

fn main() {}
