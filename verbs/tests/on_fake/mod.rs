mod blocking;
mod common;
mod completions;
mod drops;
mod failing;
mod posting;
