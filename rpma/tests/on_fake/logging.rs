//! What is logged, and who gets it.

use std::sync::{Arc, Mutex};

use cm::verbs::sys::fake::control;
use rpma::ConnectionConfig;
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::common::Pair;

/// Keeps level and module of all events up to a level.
#[derive(Clone)]
struct Kept {
    up_to: Level,
    events: Arc<Mutex<Vec<(Level, String)>>>,
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.up_to
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let entry = (*metadata.level(), metadata.target().to_owned());
        self.events.lock().expect("no panic").push(entry);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// What is logged up to a level while a device refuses what is asked for first.
fn logged(up_to: Level) -> Vec<(Level, String)> {
    let fake = control::session();
    fake.refuse_send_ops(u64::MAX);
    let kept = Kept {
        up_to,
        events: Arc::default(),
    };
    tracing::subscriber::with_default(kept.clone(), || {
        let mut config = ConnectionConfig::default();
        config.set_native_operations(true);
        drop(Pair::with(&config).expect("a connection all the same"));
    });
    fake.finish();
    let events = kept.events.lock().expect("no panic");
    events.clone()
}

#[test]
fn what_is_logged_reaches_the_subscriber_that_asks_for_its_level() {
    let everything = logged(Level::DEBUG);
    let ours = everything
        .iter()
        .filter(|(level, module)| *level == Level::DEBUG && module.starts_with("rpma::"));
    assert_eq!(ours.count(), 2, "{everything:?}");
    assert_eq!(logged(Level::INFO), []);
}
