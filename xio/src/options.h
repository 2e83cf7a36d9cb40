/*
 * The option string of a driver on a stack, "phoebus:gw=pg1/5006;user=ann@example.org" (S8): taken apart, nothing more.
 */
#ifndef PX_OPTIONS_H
#define PX_OPTIONS_H

#include <stddef.h>

/* Longest option string: a path of 16 gateways with long names and two lists of destinations fit into a quarter of it. */
#define PX_OPTIONS_MAX 8192

/* What an option is about. */
enum px_option {
    PX_SETTING,    /* an option of libphoebus, under libphoebus's name */
    PX_GATEWAY,    /* the first gateway, host/port */
    PX_PATH,       /* all gateways, separated by commas, as libphoebus wants them */
    PX_CREDENTIAL  /* the name of a credential that this host's administrator or user keeps */
};

/* Takes over one option. `name` is libphoebus's. Returns 0, or not to go on: `why` then says what is wrong. */
typedef int (*px_option_fn)(void *arg, enum px_option what, const char *name, const char *value, char *why, size_t size);

/*
 * Takes `text` apart and hands each option to `take`. Returns 0; otherwise `why` is one sentence without a full stop, and options
 * behind the wrong one have not been looked at.
 *
 * The text is percent-decoded before it is taken apart, as GCT's server does and its client does not: what both ends are given
 * must mean the same. So there is no way to say a percent sign, and one that is left is an error. Options are separated by ';',
 * the parts of a list by '|', since XIO splits a stack at each comma.
 */
int px_options_parse(const char *text, px_option_fn take, void *arg, char *why, size_t size);

#endif
