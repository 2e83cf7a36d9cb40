/*
 * Globus error objects. People read "globus_xio: phoebus: SENTENCE", and programs search them for an errno.
 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

globus_result_t px_error(int number, const char *format, ...)
{
    char text[2048];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return globus_error_put(globus_error_wrap_errno_error(GLOBUS_XIO_MODULE, number, GLOBUS_XIO_ERROR_SYSTEM_ERROR, __FILE__,
                                                          __func__, __LINE__, "phoebus: %s", text));
}

globus_result_t px_no_memory(void)
{
    return px_error(ENOMEM, "no memory");
}

globus_result_t px_error_of(const phoebus_handshake *handshake)
{
    const phoebus_error *error = phoebus_handshake_error(handshake);

    if (error == NULL)
        return px_error(EIO, "the session failed");
    /* The message names the hop that failed, unless that is obvious. */
    return px_error(phoebus_error_errno(error), "%s", phoebus_error_message(error));
}

int px_errno(globus_result_t result)
{
    globus_object_t *error = globus_error_peek(result);
    int number;

    if (globus_xio_error_is_eof(result))
        return 0;
    number = error ? globus_error_errno_search(error) : 0;
    return number > 0 ? number : EIO;
}

void px_forget(globus_result_t result)
{
    if (result != GLOBUS_SUCCESS)
        globus_object_free(globus_error_get(result));
}
