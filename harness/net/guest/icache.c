/* On Neoverse N1 the kernel's workaround for erratum 1542419 reports a 4096-byte I-cache line, and qemu then gives every
 * translation block two pages: half the speed. Preloaded into qemu, this says 64. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

long sysconf(int name)
{
    static long (*real)(int);
    if (!real)
        real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    long value = real(name);
    return name == _SC_LEVEL1_ICACHE_LINESIZE && value > 256 ? 64 : value;
}
