/*
 * Unit test of the option string: accepted options, and the messages for wrong ones.
 */
#include "../src/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static int note(void *arg, enum px_option what, const char *name, const char *value, char *why, size_t size)
{
    char *seen = arg;
    static const char WHAT[] = "sgpca";
    if (strcmp(value, "bad") == 0) {
        snprintf(why, size, "%s does not like it", name);
        return -1;
    }
    size_t at = strlen(seen);
    snprintf(seen + at, 1024 - at, "%c:%s=%s ", WHAT[what], name, value);
    return 0;
}

/* `seen` lists the expected options. `wrong` is a part of the expected message, or NULL if none is expected. */
static void check(const char *text, const char *seen, const char *wrong)
{
    char got[1024] = "", why[1024] = "";
    int result = px_options_parse(text, note, got, why, sizeof why);
    int right = wrong == NULL ? result == 0 && *why == '\0' : result != 0 && strstr(why, wrong) != NULL;
    if (!right || strcmp(got, seen) != 0) {
        fprintf(stderr, "\"%.80s\": result %d, \"%s\", \"%s\"\n", text, result, got, why);
        failures++;
    }
}

int main(void)
{
    check("", "", NULL);
    check(";;", "", NULL);
    check("gw=pg1/5006", "g:gateway=pg1/5006 ", NULL);
    check("path=pg1/5006|pg2/5007;user=ann@example.org", "p:path=pg1/5006,pg2/5007 s:user=ann@example.org ", NULL);
    check("only=10.0.0.0/8:5000-5999|[2001:db8::]/32;except=.example", "s:only=10.0.0.0/8:5000-5999,[2001:db8::]/32 "
          "s:except=.example ", NULL);
    check("fallback=direct;cc=cubic", "s:fallback=1 s:congestion_control=cubic ", NULL);
    check("fallback=none;aware=1;credential=site", "s:fallback=0 s:aware=1 c:credential=site ", NULL);
    check("streams=8;transport=udt;rate=100mbit;buffer=16MiB", "s:streams=8 s:transport=udt s:rate=100mbit "
          "s:buffer=16MiB ", NULL);
    check("connect_timeout=3s;open_timeout=20s;protection=encrypt;security=auth;first_hop=quic", "s:connect_timeout=3s "
          "s:open_timeout=20s s:protection=encrypt s:security=auth s:first_hop=quic ", NULL);

    /* An encoded comma, bar or semicolon means the same as a plain one, whether the server or this code decodes it. */
    check("path=pg1%2f5006%2Cpg2/5007", "p:path=pg1/5006,pg2/5007 ", NULL);
    check("path=pg1/5006%7cpg2/5007%3buser=a%40b", "p:path=pg1/5006,pg2/5007 s:user=a@b ", NULL);
    check("user=a|b", "s:user=a|b ", NULL);

    check("gwy=pg1/5006", "", "\"gwy\" is no option; expected one of gw, path, user,");
    check("GW=pg1/5006", "", "\"GW\" is no option");
    check("gw", "", "\"gw\" in the options has no value; expected name=value");
    check("gw=", "", "gw has no value");
    check("gw=a/1;gw=b/2", "g:gateway=a/1 ", "gw is given twice");
    check("gw=a/1;path=b/2", "g:gateway=a/1 p:path=b/2 ", "gw and path are both given");
    check("fallback=yes", "", "fallback is \"yes\"; expected direct or none");
    check("user=50%", "", "% in the options is no escape");
    check("user=50%4", "", "%4 in the options is no escape");
    check("user=50%zz", "", "%zz in the options is no escape");
    check("user=50%25", "", "a percent sign");
    check("user=a%0ab", "", "a control character");
    check("user=a%00b", "", "a control character");
    check("rate=bad;user=a", "", "rate does not like it");
    check("certificate=/etc/passwd", "", "\"certificate\" is no option");

    char *longest = malloc(PX_OPTIONS_MAX + 1);
    if (longest == NULL)
        return 1;
    memset(longest, ';', PX_OPTIONS_MAX);
    longest[PX_OPTIONS_MAX] = '\0';
    check(longest, "", "longer than 8191 bytes");
    longest[PX_OPTIONS_MAX - 1] = '\0';
    check(longest, "", NULL);
    free(longest);

    if (failures == 0)
        puts("options: ok");
    return failures != 0;
}
