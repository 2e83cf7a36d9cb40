/* Moves a file by the toolkit's client library with DCAU S, which none of its programs can be told to say.
 * Usage: dcau SUBJECT get URL FILE | put FILE URL | third URL URL */
#include <globus_ftp_client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 1 << 20 };

static globus_mutex_t lock;
static globus_cond_t changed;
static globus_ftp_client_handle_t handle;
static globus_byte_t room[ROOM];
static FILE *file;
static int done, failed;

static void complain(globus_object_t *error)
{
    char *text = globus_error_print_friendly(error);
    fprintf(stderr, "%s\n", text);
    free(text);
    failed = 1;
}

static void check(globus_result_t result)
{
    if (result != GLOBUS_SUCCESS) {
        complain(globus_error_peek(result));
        exit(1);
    }
}

static void complete(void *arg, globus_ftp_client_handle_t *of, globus_object_t *error)
{
    (void)arg, (void)of;
    globus_mutex_lock(&lock);
    if (error)
        complain(error);
    done = 1;
    globus_cond_signal(&changed);
    globus_mutex_unlock(&lock);
}

static void moved(void *to_file, globus_ftp_client_handle_t *of, globus_object_t *error, globus_byte_t *bytes,
                  globus_size_t length, globus_off_t offset, globus_bool_t eof)
{
    (void)of;
    if (error || !to_file)
        return;
    if (fseeko(file, offset, SEEK_SET) || fwrite(bytes, 1, length, file) != length)
        exit(2);
    if (!eof)
        check(globus_ftp_client_register_read(&handle, room, ROOM, moved, to_file));
}

int main(int argc, char **argv)
{
    globus_ftp_client_operationattr_t attr;
    globus_ftp_control_dcau_t dcau;
    if (argc != 5)
        return 2;
    const char *how = argv[2], *from = argv[3], *to = argv[4];
    if (globus_module_activate(GLOBUS_FTP_CLIENT_MODULE) != GLOBUS_SUCCESS)
        return 2;
    globus_mutex_init(&lock, NULL);
    globus_cond_init(&changed, NULL);
    check(globus_ftp_client_handle_init(&handle, NULL));
    check(globus_ftp_client_operationattr_init(&attr));
    check(globus_ftp_client_operationattr_set_type(&attr, GLOBUS_FTP_CONTROL_TYPE_IMAGE));
    dcau.subject.mode = GLOBUS_FTP_CONTROL_DCAU_SUBJECT;
    dcau.subject.subject = argv[1];
    check(globus_ftp_client_operationattr_set_dcau(&attr, &dcau));
    if (!strcmp(how, "get")) {
        file = fopen(to, "w");
        check(globus_ftp_client_get(&handle, from, &attr, NULL, complete, NULL));
        check(globus_ftp_client_register_read(&handle, room, ROOM, moved, file));
    } else if (!strcmp(how, "put")) {
        file = fopen(from, "r");
        size_t length = file ? fread(room, 1, ROOM, file) : 0;
        check(globus_ftp_client_put(&handle, to, &attr, NULL, complete, NULL));
        check(globus_ftp_client_register_write(&handle, room, length, 0, GLOBUS_TRUE, moved, NULL));
    } else {
        check(globus_ftp_client_third_party_transfer(&handle, from, &attr, to, &attr, NULL, complete, NULL));
    }
    globus_mutex_lock(&lock);
    while (!done)
        globus_cond_wait(&changed, &lock);
    globus_mutex_unlock(&lock);
    if (file && fclose(file))
        return 2;
    return failed;
}
