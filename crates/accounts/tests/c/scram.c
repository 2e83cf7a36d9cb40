/* One end of SCRAM by GNU SASL, for the tests: each line of standard input is a message of the other end in base64, each line of
 * standard output one of this end.
 *
 *   scram client MECHANISM USER PASSWORD BINDING
 *   scram server MECHANISM ROUNDS SALT STORED SERVER BINDING
 *
 * Salt and keys are in base64, and so is BINDING, what TLS exports; "-" is none. Ends with 0 if both ends have proved themselves. */

#include <gsasl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct answers {
    const char *user, *password, *rounds, *salt, *stored, *server, *binding;
};

static int answer(Gsasl *context, Gsasl_session *session, Gsasl_property property)
{
    const struct answers *known = gsasl_callback_hook_get(context);
    const char *value = NULL;
    switch (property) {
    case GSASL_AUTHID: value = known->user; break;
    case GSASL_PASSWORD: value = known->password; break;
    case GSASL_SCRAM_ITER: value = known->rounds; break;
    case GSASL_SCRAM_SALT: value = known->salt; break;
    case GSASL_SCRAM_STOREDKEY: value = known->stored; break;
    case GSASL_SCRAM_SERVERKEY: value = known->server; break;
    case GSASL_CB_TLS_EXPORTER: value = known->binding; break;
    default: break;
    }
    if (!value)
        return GSASL_NO_CALLBACK;
    return gsasl_property_set(session, property, value);
}

int main(int argc, char **argv)
{
    struct answers known = {0};
    int is_client = argc == 6 && !strcmp(argv[1], "client");
    if (is_client) {
        known.user = argv[3];
        known.password = argv[4];
        known.binding = argv[5];
    } else if (argc == 8 && !strcmp(argv[1], "server")) {
        known.rounds = argv[3];
        known.salt = argv[4];
        known.stored = argv[5];
        known.server = argv[6];
        known.binding = argv[7];
    } else {
        fputs("scram: wrong arguments\n", stderr);
        return 2;
    }
    if (!strcmp(known.binding, "-"))
        known.binding = NULL;
    Gsasl *context;
    Gsasl_session *session;
    int code = gsasl_init(&context);
    if (code == GSASL_OK) {
        gsasl_callback_set(context, answer);
        gsasl_callback_hook_set(context, &known);
        code = is_client ? gsasl_client_start(context, argv[2], &session) : gsasl_server_start(context, argv[2], &session);
    }
    if (code != GSASL_OK) {
        fprintf(stderr, "scram: %s\n", gsasl_strerror(code));
        return 3;
    }
    char line[8192];
    code = GSASL_NEEDS_MORE;
    for (int is_first = 1; code == GSASL_NEEDS_MORE; is_first = 0) {
        line[0] = 0;
        /* The client begins. */
        if (!(is_client && is_first)) {
            if (!fgets(line, sizeof line, stdin))
                break;
            line[strcspn(line, "\n")] = 0;
        }
        char *out = NULL;
        code = gsasl_step64(session, line, &out);
        if (code != GSASL_OK && code != GSASL_NEEDS_MORE) {
            fprintf(stderr, "scram: %s\n", gsasl_strerror(code));
            return 1;
        }
        if (out && *out) {
            puts(out);
            fflush(stdout);
        }
        gsasl_free(out);
    }
    gsasl_finish(session);
    gsasl_done(context);
    return code == GSASL_OK ? 0 : 1;
}
