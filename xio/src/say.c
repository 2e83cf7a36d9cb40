/*
 * Reports (S20): lines of JSON in the file PHOEBUS_REPORT, as `phoebus run` writes them, and sentences on standard
 * error.
 */
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

static void append(const char *line, size_t len)
{
    const char *file = secure_getenv("PHOEBUS_REPORT");
    int fd;

    if (file == NULL || *file == '\0')
        return;
    fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (fd < 0)
        return;
    /* One write, so that lines of several processes do not mix. */
    while (write(fd, line, len) < 0 && errno == EINTR)
        ;
    close(fd);
}

/* Whether messages may go to standard error. For a server that inetd started, it is the control channel. */
static int may_speak(void)
{
    struct stat status;
    return fstat(STDERR_FILENO, &status) == 0 && !S_ISSOCK(status.st_mode);
}

static void say(int always, const char *format, ...)
{
    const char *verbose = secure_getenv("PHOEBUS_VERBOSE");
    va_list arguments;
    char *text;

    if (!always && (verbose == NULL || strcmp(verbose, "1") != 0))
        return;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0)
        text = NULL;
    va_end(arguments);
    if (text == NULL)
        return;
    if (may_speak())
        dprintf(STDERR_FILENO, "phoebus: %s\n", text);
    else if (always)
        syslog(LOG_NOTICE, "phoebus: %s", text);
    free(text);
}

/* Writes a JSON string with its quotes. The text comes from libphoebus, so it has no control characters. */
static void quote(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', to);
        fputc((unsigned char)*text < 0x20 ? ' ' : *text, to);
    }
    fputc('"', to);
}

/* Writes a line with this driver's members first, and those of the session's report after them. */
static void line(const char *event, const char *client, const phoebus_report *report)
{
    const char *json = phoebus_report_json(report);
    size_t len = 0;
    char *text = NULL;
    FILE *to = open_memstream(&text, &len);

    if (to == NULL)
        return;
    fprintf(to, "{\"event\":\"%s\",\"pid\":%d,", event, (int)getpid());
    if (client != NULL) {
        fputs("\"client\":", to);
        quote(to, client);
        fputc(',', to);
    }
    fprintf(to, "%s\n", *json == '{' ? json + 1 : "}");
    if (fclose(to) == 0)
        append(text, len);
    free(text);
}

void px_say_opened(const phoebus_handshake *handshake, int fell_back)
{
    const phoebus_report *report = phoebus_handshake_report(handshake);
    int direct = phoebus_handshake_is_direct(handshake);
    const char *note;

    if (report == NULL)
        return;
    note = phoebus_report_note(report);
    line(direct ? "direct" : "opened", NULL, report);
    if (direct)
        say(fell_back, "%s goes direct%s%s", phoebus_report_destination(report), *note ? ": " : "", note);
    else
        say(0, "%s", phoebus_report_text(report));
}

void px_say_accepted(const phoebus_handshake *handshake)
{
    const phoebus_report *report = phoebus_handshake_report(handshake);

    if (report == NULL)
        return;
    line("accepted", phoebus_handshake_peer(handshake), report);
    say(0, "from %s: %s", phoebus_handshake_peer(handshake), phoebus_report_text(report));
}

void px_say_failed(const phoebus_handshake *handshake, const char *destination)
{
    const phoebus_error *error = phoebus_handshake_error(handshake);
    size_t len = 0;
    char *line = NULL;
    FILE *to;

    if (error == NULL || (to = open_memstream(&line, &len)) == NULL)
        return;
    fputs("{\"event\":\"failed\",\"session\":\"\",\"destination\":", to);
    quote(to, destination ? destination : "");
    fputs(",\"hops\":[],\"rtt_us\":0,\"opened_in_us\":0,\"note\":", to);
    quote(to, phoebus_error_message(error));
    fputs(",\"hop\":", to);
    quote(to, phoebus_error_hop(error));
    fprintf(to, ",\"code\":%d,\"errno\":%d,\"pid\":%d}\n", phoebus_error_code(error), phoebus_error_errno(error),
            (int)getpid());
    if (fclose(to) == 0)
        append(line, len);
    free(line);
    if (destination != NULL)
        say(1, "no session to %s: %s", destination, phoebus_error_message(error));
    else
        say(1, "no session was accepted: %s", phoebus_error_message(error));
}
