/*
 * Messages and reports that this driver writes itself, not the program.
 */
#ifndef PX_SAY_H
#define PX_SAY_H

#include <phoebus.h>

/*
 * Reports that the session or the direct connection is open. Appends a line of JSON to the file that PHOEBUS_REPORT
 * names. With PHOEBUS_VERBOSE=1, also writes a message to standard error. A fallback to a direct connection always gets
 * a message.
 */
void px_say_opened(const phoebus_handshake *handshake, int fell_back);

/* Reports in the same way that a session was accepted. */
void px_say_accepted(const phoebus_handshake *handshake);

/*
 * Reports that the session to `destination` failed, or an accepted one if `destination` is NULL. It always writes a
 * message: GCT's client drops its own error when the server reports one, and the server knows only that the connection
 * ended.
 */
void px_say_failed(const phoebus_handshake *handshake, const char *destination);

#endif
