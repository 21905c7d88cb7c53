//! The signatures of functions written by hand, read from the source and told in C.

use super::source;

/// A function as the source declares it.
pub(crate) struct Signature {
    pub(crate) name: String,
    /// Types of the arguments in C, without the dots of a variadic one.
    pub(crate) arguments: Vec<String>,
    pub(crate) variadic: bool,
    /// Type of the result in C.
    pub(crate) result: String,
}

impl Signature {
    /// The declaration, with `a0`, `a1` … as the names of the arguments.
    pub(crate) fn in_c(&self) -> String {
        let mut arguments: Vec<String> = self
            .arguments
            .iter()
            .enumerate()
            .map(|(at, ty)| format!("{ty} a{at}"))
            .collect();
        if self.variadic {
            arguments.push("...".to_owned());
        }
        format!("{} {}({})", self.result, self.name, arguments.join(", "))
    }

    /// Declarations of the structs that it names, for headers that do not have them.
    pub(crate) fn structs(&self) -> impl Iterator<Item = &str> {
        let types = self.arguments.iter().chain([&self.result]);
        types.filter_map(|ty| {
            let from = ty.find("struct ")?;
            Some(ty[from..].trim_end_matches([' ', '*']))
        })
    }
}

/// The functions of a source file whose declarations begin their line with `prefix`.
pub(crate) fn signatures(path: &str, prefix: &str) -> Vec<Signature> {
    let text = source(path);
    let mut found = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if let Some(rest) = line.trim_start().strip_prefix(prefix) {
            let begin = at + line.len() - rest.len();
            found.push(signature(&text[begin..]));
        }
        at += line.len();
    }
    assert!(
        !found.is_empty(),
        "{path} has no line that begins with `{prefix}`"
    );
    found
}

/// Reads `name(argument: Type, …) -> Type`, up to what comes after it.
fn signature(text: &str) -> Signature {
    let (name, rest) = text.split_once('(').expect("a function has arguments");
    let (arguments, rest) = rest.split_once(')').expect("the arguments end");
    let after = rest
        .split(['=', ';', '{'])
        .next()
        .unwrap_or_default()
        .trim();
    let result = after
        .strip_prefix("->")
        .map_or("void".to_owned(), |ty| type_in_c(ty.trim()));
    let mut variadic = false;
    let mut types = Vec::new();
    for argument in arguments
        .split(',')
        .map(str::trim)
        .filter(|argument| !argument.is_empty())
    {
        if argument == "..." {
            variadic = true;
        } else {
            let (_, ty) = argument.split_once(':').expect("an argument has a type");
            types.push(type_in_c(ty.trim()));
        }
    }
    Signature {
        name: name.to_owned(),
        arguments: types,
        variadic,
        result,
    }
}

/// What C calls a type of Rust.
fn type_in_c(ty: &str) -> String {
    if let Some(to) = ty.strip_prefix("*mut ") {
        return format!("{} *", type_in_c(to));
    }
    if let Some(to) = ty.strip_prefix("*const ") {
        return format!("const {} *", type_in_c(to));
    }
    let plain = match ty {
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "ssize_t" | "off_t" | "socklen_t" | "nfds_t" | "fd_set" => ty,
        "rdma_cm_event_type" => "enum rdma_cm_event_type",
        _ => return format!("struct {ty}"),
    };
    plain.to_owned()
}
