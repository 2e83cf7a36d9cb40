//! The transport made from a blocking library.

use super::duplex::{self, ChangeableOptions, STACK, Setup, Wrapped};
use super::fault::Fault;
use super::listener;
use super::permits::{Permit, Permits};
use super::{Connection, Driver, Limits, Setting};
use crate::congestion_control::CongestionControl;
use crate::error::Error;
use crate::profile::{Buffer, Profile};
use crate::stream::Stream;
use crate::transport::{Boxed, Listener, Target, Transport};
use phoebus_proto::units::Span;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a dropped connection may keep delivering if the profile's `user_timeout` sets no limit: as long
/// as TCP in the kernel.
const LINGER: Duration = Duration::from_secs(15 * 60);

/// A blocking library as a transport.
#[derive(Debug)]
pub struct WrapBlock {
    driver: Arc<dyn Driver>,
    options: Vec<Setting>,
    limits: Limits,
    places: Arc<Permits>,
}

impl WrapBlock {
    /// Makes a transport from `driver`, with these options on each connection.
    pub fn new(driver: Arc<dyn Driver>, options: Vec<Setting>, limits: Limits) -> Self {
        Self { driver, options, limits, places: Permits::new(limits.connections) }
    }

    /// The number of connections, including those being opened or closed.
    pub fn connections(&self) -> usize {
        self.places.taken()
    }

    /// The driver's settings for a profile, and the common state of its connections.
    fn prepare(&self, profile: &Profile) -> Result<(Vec<Setting>, Setup), Fault> {
        let driver = &*self.driver;
        let mut wishes = Wishes { driver, settings: self.options.clone(), missing: Vec::new() };
        if let Some(rate) = profile.rate
            && !wishes.make("rate", rate.0.to_string())
        {
            // Exceeding a circuit's rate harms other users, so this is an error and not a note.
            let text = format!("the profile sets a rate, and the driver {} has no such option", driver.name());
            return Err(Fault::new(libc::EOPNOTSUPP, text));
        }
        for (name, buffer) in [("send_buffer", profile.send_buffer), ("receive_buffer", profile.receive_buffer)] {
            if let Some(size) = buffer.bytes() {
                wishes.make(name, size.to_string());
            }
        }
        if let Some(mss) = profile.mss {
            wishes.make("mss", mss.to_string());
        }
        let control = profile.congestion_control;
        if !matches!(control, CongestionControl::Auto | CongestionControl::System) {
            wishes.make("congestion_control", control.to_string());
        }
        let Wishes { settings, missing, .. } = wishes;
        let note = (!missing.is_empty()).then(|| {
            format!("the profile sets {}, and the driver {} has no such option", missing.join(", "), driver.name())
        });
        let control = settings.iter().find(|setting| setting.name == "congestion_control");
        let size =
            |buffer: Buffer| usize::try_from(buffer.bytes().unwrap_or(self.limits.buffer.0)).unwrap_or(usize::MAX);
        let setup = Setup {
            name: driver.name(),
            abilities: driver.abilities(),
            send_buffer: size(profile.send_buffer),
            receive_buffer: size(profile.receive_buffer),
            linger: if profile.user_timeout.0.is_zero() { LINGER } else { profile.user_timeout.0 },
            live: ChangeableOptions {
                rate: driver.has_option("rate", true),
                send_buffer: driver.has_option("send_buffer", true),
                receive_buffer: driver.has_option("receive_buffer", true),
                congestion_control: driver.has_option("congestion_control", true),
            },
            congestion_control: control.map(|setting| setting.value.clone()).unwrap_or_default(),
            note,
        };
        Ok((settings, setup))
    }

    fn place(&self) -> Result<Permit, Fault> {
        self.places.take().ok_or_else(|| {
            let text =
                format!("{} already has {} connections, the configured maximum", self.driver.name(), self.places.all());
            Fault::new(libc::EAGAIN, text)
        })
    }
}

/// The settings that a profile requests of a driver.
struct Wishes<'a> {
    driver: &'a dyn Driver,
    settings: Vec<Setting>,
    missing: Vec<&'static str>,
}

impl Wishes<'_> {
    /// Adds a setting if the driver has the option; it replaces the administrator's, which applies to all
    /// profiles.
    fn make(&mut self, name: &'static str, value: String) -> bool {
        let has = self.driver.has_option(name, false);
        if has {
            self.settings.retain(|setting| setting.name != name);
            self.settings.push(Setting { name: name.into(), value });
        } else {
            self.missing.push(name);
        }
        has
    }
}

impl Transport for WrapBlock {
    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn connect<'a>(
        &'a self,
        target: &'a Target,
        profile: &'a Profile,
        limit: Duration,
    ) -> Boxed<'a, Result<Stream, Error>> {
        Box::pin(async move {
            let to = target.addr;
            let failed = |fault: Fault| Error::Connect { to, source: fault.into() };
            let (settings, setup) = self.prepare(profile).map_err(failed)?;
            let place = self.place().map_err(failed)?;
            let (sender, receiver) = oneshot::channel();
            let attempt = Attempt(Arc::default());
            let (driver, started) = (self.driver.clone(), attempt.0.clone());
            thread::Builder::new()
                .name(format!("{}-w", setup.name))
                .stack_size(STACK)
                .spawn(move || match make(&*driver, &settings, setup, place, to, limit, &started) {
                    Ok((wrapped, writer)) => {
                        // If nobody waits any more, this drops the connection, and the writing thread closes
                        // it.
                        drop(sender.send(Ok(wrapped)));
                        writer();
                    }
                    Err(fault) => drop(sender.send(Err(fault))),
                })
                .map_err(|error| failed(error.into()))?;
            match tokio::time::timeout(limit, receiver).await {
                Ok(Ok(made)) => made.map(Stream::from).map_err(failed),
                // The thread has panicked inside the library.
                Ok(Err(_)) => Err(failed(Fault::new(libc::EIO, "the driver's thread panicked"))),
                Err(_) => Err(Error::Timeout { to: to.to_string(), limit: Span(limit) }),
            }
        })
    }

    fn listen(&self, addr: SocketAddr, profile: &Profile) -> Result<Box<dyn Listener>, Error> {
        let failed = |fault: Fault| Error::Listen { addr, source: fault.into() };
        let (settings, setup) = self.prepare(profile).map_err(failed)?;
        let listener = self.driver.listen(addr, &settings).map_err(failed)?;
        Ok(Box::new(listener::Listener::start(listener, setup, self.places.clone()).map_err(failed)?))
    }
}

/// A pending connect. Dropping it before completion interrupts the connect.
#[derive(Debug)]
struct Attempt(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<dyn Connection>>,
    over: bool,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.over = true;
        if let Some(connection) = &state.connection {
            connection.interrupt();
        }
    }
}

/// Opens and connects. While `started` contains the connection, it can be interrupted; it is removed before
/// this returns.
fn make(
    driver: &dyn Driver,
    settings: &[Setting],
    setup: Setup,
    place: Permit,
    to: SocketAddr,
    limit: Duration,
    started: &Mutex<State>,
) -> Result<(Wrapped, impl FnOnce() + Send + 'static), Fault> {
    let lock = || started.lock().unwrap_or_else(PoisonError::into_inner);
    let connection = driver.open(settings)?;
    lock().connection = Some(connection.clone());
    let connected = loop {
        if lock().over {
            break Err(Fault::canceled());
        }
        match connection.connect(to, limit) {
            Err(fault) if fault.is_again() => {}
            done => break done,
        }
    };
    lock().connection = None;
    connected?;
    Ok(duplex::start(connection, setup, place)?)
}
