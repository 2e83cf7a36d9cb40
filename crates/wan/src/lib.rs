//! The emulated WAN: link models, a virtual-time simulator, live links between namespaces, testbeds.
