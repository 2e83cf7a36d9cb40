/*
 * Unit test of the direction of paths.
 */
#include "../src/path.h"

#include <stdio.h>
#include <string.h>

static int failures;

static void check(const char *path, const char *own, const char *expected)
{
    char got[256], why[256] = "";
    strcpy(got, path);
    int result = px_path_enter(got, own, why, sizeof why);
    int right = expected == NULL ? result != 0 && strstr(why, "is inside the path") != NULL
                                 : result == 0 && strcmp(got, expected) == 0;
    if (!right) {
        fprintf(stderr, "%s from %s: result %d, \"%s\", \"%s\"\n", path, own, result, got, why);
        failures++;
    }
}

int main(void)
{
    check("pg1:5006,pg2:5006", "", "pg1:5006,pg2:5006");
    check("pg1:5006,pg2:5006", "pg1:5006", "pg1:5006,pg2:5006");
    check("pg1:5006,pg2:5006", "pg2:5006", "pg2:5006,pg1:5006");
    check("pg1:5006,mid:1,pg2:5007", "pg2:5007", "pg2:5007,mid:1,pg1:5006");
    check("pg1:5006,pg2:5006", "pg2:5007", "pg1:5006,pg2:5006");
    check("pg1:5006,pg2:5006", "pg2:500", "pg1:5006,pg2:5006");
    check("pg1:5006", "pg1:5006", "pg1:5006");
    check("[2001:db8::1]:5006,[2001:db8::2]:5006", "[2001:db8::2]:5006", "[2001:db8::2]:5006,[2001:db8::1]:5006");
    check("a:1,b:2,c:3", "b:2", NULL);
    check("a:1,b:2,c:3,a:1", "a:1", "a:1,b:2,c:3,a:1");

    if (failures == 0)
        puts("path: ok");
    return failures != 0;
}
