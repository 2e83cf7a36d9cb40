/*
 * What this driver tells people, without the program's help.
 */
#ifndef PX_SAY_H
#define PX_SAY_H

#include <phoebus.h>

/*
 * A session is open, or the connection goes direct: a line of JSON in the file that PHOEBUS_REPORT names, a sentence on standard
 * error with PHOEBUS_VERBOSE=1. One that was to go through a gateway and fell back is always said.
 */
void px_say_opened(const phoebus_handshake *handshake, int fell_back);

/* A session has come here: likewise. */
void px_say_accepted(const phoebus_handshake *handshake);

/*
 * There is none, and the connection to `destination`, or one that was accepted if that is NULL, has failed. That is always said:
 * GCT's client forgets its own error when the server has one, which then knows nothing but that the connection ended.
 */
void px_say_failed(const phoebus_handshake *handshake, const char *destination);

#endif
