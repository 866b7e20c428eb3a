/* A stand-in for the NVIDIA driver's libnvidia-ml.so.1, for machines without a GPU.
 *
 * It has the C interface that nvidia-ml-py calls and answers from a text file, named by TRTB_FAKE_NVML, of
 * lines "key value". What the file does not hold is not supported, as on a GPU without the feature.
 *
 *   driver 580.95.05                    a value of the system's
 *   0.name NVIDIA H200                  a value of GPU 0's
 *   0.mig0.memory_total 10200547328     a value of its first MIG slice's
 *   0-1.p2p.0 0                         a value of a pair's
 *   fault.0.nvmlDeviceGetSerial 4       that call returns this error
 *   fault.from.0.nvmlDeviceGetName 999  that call and every later one do
 *   fault.0.nvmlDeviceGetName hang      it never returns; "crash": it ends the process
 *
 * With -DFAKE_DRIVER=470 it lacks the functions that came after that driver. Its structures are its own;
 * a test compares their layout with nvidia-ml-py's.
 */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKE_DRIVER
#define FAKE_DRIVER 580
#endif

typedef unsigned int nvmlReturn_t;
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, VERSION_MISMATCH = 25
};

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
    unsigned int multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount;
    unsigned int sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;
typedef struct {
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned int cliqueId, state;
} nvmlGpuFabricInfo_t;
typedef struct { unsigned int version, sensorType; int temperature; } nvmlTemperature_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;

/* offset << 16 | size, for the test that compares them: "nvmlMemory_t", "nvmlMemory_t.free" */
#define SIZE(type) { #type, sizeof(type) }
#define FIELD(type, field) { #type "." #field, offsetof(type, field) << 16 | sizeof(((type *)0)->field) }
static const struct { const char *what; size_t value; } layout[] = {
    SIZE(nvmlMemory_t), FIELD(nvmlMemory_t, total), FIELD(nvmlMemory_t, free), FIELD(nvmlMemory_t, used),
    SIZE(nvmlPciInfo_t), FIELD(nvmlPciInfo_t, busIdLegacy), FIELD(nvmlPciInfo_t, domain),
    FIELD(nvmlPciInfo_t, bus), FIELD(nvmlPciInfo_t, device), FIELD(nvmlPciInfo_t, pciDeviceId),
    FIELD(nvmlPciInfo_t, pciSubSystemId), FIELD(nvmlPciInfo_t, busId),
    SIZE(nvmlProcessInfo_t), FIELD(nvmlProcessInfo_t, pid), FIELD(nvmlProcessInfo_t, usedGpuMemory),
    FIELD(nvmlProcessInfo_t, gpuInstanceId), FIELD(nvmlProcessInfo_t, computeInstanceId),
    SIZE(nvmlDeviceAttributes_t), FIELD(nvmlDeviceAttributes_t, multiprocessorCount),
    FIELD(nvmlDeviceAttributes_t, sharedCopyEngineCount), FIELD(nvmlDeviceAttributes_t, sharedDecoderCount),
    FIELD(nvmlDeviceAttributes_t, sharedEncoderCount), FIELD(nvmlDeviceAttributes_t, sharedJpegCount),
    FIELD(nvmlDeviceAttributes_t, sharedOfaCount), FIELD(nvmlDeviceAttributes_t, gpuInstanceSliceCount),
    FIELD(nvmlDeviceAttributes_t, computeInstanceSliceCount), FIELD(nvmlDeviceAttributes_t, memorySizeMB),
    SIZE(nvmlGpuFabricInfo_t), FIELD(nvmlGpuFabricInfo_t, clusterUuid), FIELD(nvmlGpuFabricInfo_t, status),
    FIELD(nvmlGpuFabricInfo_t, cliqueId), FIELD(nvmlGpuFabricInfo_t, state),
    SIZE(nvmlTemperature_t), FIELD(nvmlTemperature_t, version), FIELD(nvmlTemperature_t, sensorType),
    FIELD(nvmlTemperature_t, temperature),
    SIZE(nvmlUtilization_t), FIELD(nvmlUtilization_t, gpu), FIELD(nvmlUtilization_t, memory),
};

int fake_nvml_layout(const char *what) {
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++)
        if (!strcmp(layout[i].what, what)) return (int)layout[i].value;
    return -1;
}

/* ---- the scenario ---- */

typedef struct { char scope[16]; } device_t; /* "0" or "0.mig3" */

static struct { char key[80], value[200]; } lines[4096];
static int num_lines;
static int sticky_error;
static device_t gpus[16], slices[16][8];

static const char *find(const char *key) {
    for (int i = num_lines - 1; i >= 0; i--) /* a later line overrides */
        if (!strcmp(lines[i].key, key)) return lines[i].value;
    return NULL;
}

static const char *lookup(const char *scope, const char *name) {
    char key[96];
    snprintf(key, sizeof key, "%s%s%s", scope, *scope ? "." : "", name);
    return find(key);
}

static nvmlReturn_t load(void) {
    const char *path = getenv("TRTB_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[300];
    if (!file) return DRIVER_NOT_LOADED;
    num_lines = 0;
    while (fgets(line, sizeof line, file) && num_lines < (int)(sizeof lines / sizeof *lines)) {
        line[strcspn(line, "\n")] = 0;
        char *blank = strchr(line, ' ');
        if (!blank || *line == '#') continue;
        *blank = 0;
        snprintf(lines[num_lines].key, sizeof lines->key, "%.79s", line);
        snprintf(lines[num_lines].value, sizeof lines->value, "%.199s", blank + 1);
        num_lines++;
    }
    fclose(file);
    return SUCCESS;
}

/* Return the error that the scenario wants of this call, or do worse; 0 for none. */
static nvmlReturn_t fault(const char *scope, const char *function) {
    char name[96];
    const char *what;
    if (sticky_error) return sticky_error;
    snprintf(name, sizeof name, "%s%s%s", scope, *scope ? "." : "", function);
    if ((what = lookup("fault.from", name))) return sticky_error = atoi(what);
    if (!(what = lookup("fault", name))) return SUCCESS;
    if (!strcmp(what, "hang")) for (;;) pause();
    if (!strcmp(what, "crash")) raise(SIGSEGV);
    return atoi(what);
}

static nvmlReturn_t text(const char *scope, const char *function, const char *name, char *to, unsigned size) {
    nvmlReturn_t error = fault(scope, function);
    const char *value = lookup(scope, name);
    if (error) return error;
    if (!value) return NOT_SUPPORTED;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, value);
    return SUCCESS;
}

static nvmlReturn_t number(const char *scope, const char *function, const char *name, unsigned long long *to) {
    nvmlReturn_t error = fault(scope, function);
    const char *value = lookup(scope, name);
    if (error) return error;
    if (!value) return NOT_SUPPORTED;
    *to = strtoull(value, NULL, 0);
    return SUCCESS;
}

static nvmlReturn_t small(const char *scope, const char *function, const char *name, unsigned *to) {
    unsigned long long value = 0;
    nvmlReturn_t error = number(scope, function, name, &value);
    if (!error) *to = (unsigned)value;
    return error;
}

#define TEXT_OF_SYSTEM(function, name) \
    nvmlReturn_t function(char *to, unsigned size) { return text("", #function, name, to, size); }
#define TEXT(function, name) \
    nvmlReturn_t function(device_t *d, char *to, unsigned size) { \
        return text(d->scope, #function, name, to, size); \
    }
#define NUMBER(function, name) \
    nvmlReturn_t function(device_t *d, unsigned *to) { return small(d->scope, #function, name, to); }
/* one key for each value of an enumeration: "0.clock.1" */
#define NUMBER_OF(function, name) \
    nvmlReturn_t function(device_t *d, unsigned kind, unsigned *to) { \
        char key[40]; \
        snprintf(key, sizeof key, "%s.%u", name, kind); \
        return small(d->scope, #function, key, to); \
    }
#define NOW_AND_LATER(function, name) \
    nvmlReturn_t function(device_t *d, unsigned *now, unsigned *later) { \
        nvmlReturn_t error = small(d->scope, #function, name, now); \
        if (!error) *later = *now; \
        return error; \
    }

/* ---- the interface ---- */

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    nvmlReturn_t error = load();
    (void)flags;
    return error ? error : fault("", "nvmlInitWithFlags");
}

const char *nvmlErrorString(nvmlReturn_t error) {
    return error == VERSION_MISMATCH ? "Argument version mismatch" : "Unknown Error";
}

nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

TEXT_OF_SYSTEM(nvmlSystemGetDriverVersion, "driver")
TEXT_OF_SYSTEM(nvmlSystemGetNVMLVersion, "nvml")
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(unsigned *to) {
    return small("", "nvmlSystemGetCudaDriverVersion_v2", "cuda", to);
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *to) { return small("", "nvmlDeviceGetCount_v2", "count", to); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **to) {
    if (index >= sizeof gpus / sizeof *gpus) return INVALID_ARGUMENT;
    snprintf(gpus[index].scope, sizeof gpus->scope, "%u", index);
    *to = &gpus[index];
    return fault(gpus[index].scope, "nvmlDeviceGetHandleByIndex_v2");
}

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_limit_mw")
NUMBER(nvmlDeviceGetPowerUsage, "power_draw_mw")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig_max")
NUMBER(nvmlDeviceGetGpuInstanceId, "gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, "compute_instance")
NUMBER_OF(nvmlDeviceGetClockInfo, "clock")
NUMBER_OF(nvmlDeviceGetMaxClockInfo, "clock_max")
NUMBER_OF(nvmlDeviceGetTemperature, "temperature")
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, "temperature_threshold")
NOW_AND_LATER(nvmlDeviceGetMigMode, "mig")
NOW_AND_LATER(nvmlDeviceGetEccMode, "ecc")

nvmlReturn_t nvmlDeviceGetPciInfo_v3(device_t *d, nvmlPciInfo_t *to) {
    memset(to, 0, sizeof *to);
    return text(d->scope, "nvmlDeviceGetPciInfo_v3", "bus_id", to->busId, sizeof to->busId);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(device_t *d, int *major, int *minor) {
    char value[16];
    nvmlReturn_t error =
        text(d->scope, "nvmlDeviceGetCudaComputeCapability", "capability", value, sizeof value);
    if (!error && sscanf(value, "%d.%d", major, minor) != 2) error = NOT_FOUND;
    return error;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(device_t *d, nvmlMemory_t *to) {
    nvmlReturn_t error = number(d->scope, "nvmlDeviceGetMemoryInfo", "memory_total", &to->total);
    if (!error) error = number(d->scope, "nvmlDeviceGetMemoryInfo", "memory_free", &to->free);
    if (!error) to->used = to->total - to->free;
    return error;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(device_t *d, nvmlUtilization_t *to) {
    to->memory = 0;
    return small(d->scope, "nvmlDeviceGetUtilizationRates", "busy_percent", &to->gpu);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned index, device_t **to) {
    unsigned parent = (unsigned)atoi(d->scope);
    nvmlReturn_t error = fault(d->scope, "nvmlDeviceGetMigDeviceHandleByIndex");
    if (error) return error;
    if (index >= 8) return INVALID_ARGUMENT;
    device_t *slice = &slices[parent][index];
    snprintf(slice->scope, sizeof slice->scope, "%u.mig%u", parent, index);
    if (!lookup(slice->scope, "uuid")) return NOT_FOUND;
    *to = slice;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(device_t *d, nvmlDeviceAttributes_t *to) {
    memset(to, 0, sizeof *to);
    return small(d->scope, "nvmlDeviceGetAttributes_v2", "multiprocessors", &to->multiprocessorCount);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(device_t *d, unsigned type, unsigned span, unsigned long long *to) {
    char key[40];
    snprintf(key, sizeof key, "ecc_errors.%u.%u", type, span);
    return number(d->scope, "nvmlDeviceGetTotalEccErrors", key, to);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(
    device_t *d, unsigned *corrected, unsigned *uncorrected, unsigned *is_pending, unsigned *has_failed) {
    char value[64];
    nvmlReturn_t error = text(d->scope, "nvmlDeviceGetRemappedRows", "remapped_rows", value, sizeof value);
    if (!error && sscanf(value, "%u %u %u %u", corrected, uncorrected, is_pending, has_failed) != 4)
        error = NOT_FOUND;
    return error;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(device_t *d, unsigned long long *to) {
    return number(d->scope, "nvmlDeviceGetCurrentClocksThrottleReasons", "clock_reasons", to);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(device_t *d, unsigned link, unsigned *to) {
    unsigned active = 0, all = 0;
    nvmlReturn_t error = small(d->scope, "nvmlDeviceGetNvLinkState", "nvlinks", &all);
    if (error) return error;
    if (link >= all) return INVALID_ARGUMENT;
    error = small(d->scope, "nvmlDeviceGetNvLinkState", "nvlinks_active", &active);
    *to = link < active;
    return error;
}

static const char *pair(const device_t *a, const device_t *b) {
    static char scope[40];
    snprintf(scope, sizeof scope, "%s-%s", a->scope, b->scope);
    return scope;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(device_t *a, device_t *b, unsigned index, unsigned *to) {
    char key[24];
    snprintf(key, sizeof key, "p2p.%u", index);
    return small(pair(a, b), "nvmlDeviceGetP2PStatus", key, to);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(device_t *a, device_t *b, unsigned *to) {
    return small(pair(a, b), "nvmlDeviceGetTopologyCommonAncestor", "path", to);
}

/* "4242:1073741824 77:-", where "-" is memory that the driver does not tell */
static nvmlReturn_t processes(
    device_t *d, const char *function, const char *name, unsigned *count, nvmlProcessInfo_t *to) {
    nvmlReturn_t error = fault(d->scope, function);
    const char *value = lookup(d->scope, name);
    char copy[200], *rest = copy, *item;
    unsigned found = 0;
    if (error) return error;
    snprintf(copy, sizeof copy, "%s", value ? value : "");
    while ((item = strsep(&rest, " "))) {
        char *colon = strchr(item, ':');
        if (!colon) continue;
        if (found < *count) {
            to[found].pid = (unsigned)atoi(item);
            to[found].usedGpuMemory = colon[1] == '-' ? ~0ULL : strtoull(colon + 1, NULL, 0);
            to[found].gpuInstanceId = to[found].computeInstanceId = ~0U;
        }
        found++;
    }
    error = found > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return error;
}

#define PROCESSES(function, name) \
    nvmlReturn_t function(device_t *d, unsigned *count, nvmlProcessInfo_t *to) { \
        return processes(d, #function, name, count, to); \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics_processes")

#if FAKE_DRIVER >= 510
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics_processes")
#endif

#if FAKE_DRIVER >= 535
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(device_t *d, unsigned long long *to) {
    return number(d->scope, "nvmlDeviceGetCurrentClocksEventReasons", "clock_reasons", to);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(device_t *d, nvmlGpuFabricInfo_t *to) {
    memset(to, 0, sizeof *to);
    return small(d->scope, "nvmlDeviceGetGpuFabricInfo", "fabric_state", &to->state);
}
#endif

#if FAKE_DRIVER >= 570
nvmlReturn_t nvmlDeviceGetTemperatureV(device_t *d, nvmlTemperature_t *to) {
    char key[40];
    if (to->version != (1u << 24 | sizeof *to)) return VERSION_MISMATCH;
    snprintf(key, sizeof key, "temperature.%u", to->sensorType);
    return small(d->scope, "nvmlDeviceGetTemperatureV", key, (unsigned *)&to->temperature);
}
#endif
