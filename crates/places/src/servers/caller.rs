//! What the program has to provide for connections to servers.

use crate::error::Result;
use phoebus_client::{Options, Report};
use phoebus_config::settings::{Key, Settings};
use std::any::Any;
use std::fmt;

/// A setting with its value, or with none to ignore what other sources say of it.
pub type Variable = (Key, Option<String>);

/// Keeps an agent running until it is dropped.
pub type AgentHandle = Box<dyn Any + Send + Sync>;

/// The program that uses this crate: it knows its user's settings, starts agents and writes reports.
pub trait Caller: fmt::Debug + Send + Sync {
    /// Returns the settings of sessions. `variables` override every other source. Called once, before the first server
    /// is connected to.
    ///
    /// # Errors
    /// A setting is wrong.
    fn settings(&self, variables: &[Variable]) -> Result<Settings>;

    /// Checks, before anything is begun, that [`Self::opened`] will be able to report sessions.
    ///
    /// # Errors
    /// Reports cannot be written.
    fn check(&self, settings: &Settings) -> Result<()>;

    /// Returns the agent for the first hop that `settings` ask for, or none if they ask for none. Starts one with
    /// `variables` if none runs. Called from an asynchronous task; an implementation that blocks has to say so to its
    /// runtime.
    ///
    /// # Errors
    /// The settings are wrong, or the agent that they demand cannot be started.
    fn agent(&self, settings: &Settings, variables: &[Variable]) -> Result<Option<AgentHandle>>;

    /// Returns the options of sessions for `settings`.
    fn sessions(&self, settings: &Settings) -> Options;

    /// Called with the report of each session once it is open.
    fn opened(&self, settings: &Settings, report: &Report);
}
