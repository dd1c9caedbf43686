/* NVML as a library, with one GPU that always says the same: so that the real binding is tried where there is no driver.

   Built by test_nvml_library.py. -DOLD leaves out what drivers of around 2019 did not have. Layouts and numbers are those of nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, TIMEOUT = 10 };
typedef struct { int unused; } Device;
static Device only;
static int xids = 1;

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned long long total, available, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, available, used; } MemoryV2;
typedef struct { unsigned field, scope; long long at, latency; unsigned type, answer; union { double d; unsigned u; unsigned long long ull; } value; } Field;
typedef struct { Device *device; unsigned long long type, data; unsigned instance, compute; } Event;
typedef struct { unsigned version, sensor; int celsius; } Temperature;

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return "an error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "580.65.06", size); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) { *device = &only; return OK; }
int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) { strncpy(text, "GPU-11112222-3333", size); return OK; }
int nvmlDeviceGetName(Device *device, char *text, unsigned size) { strncpy(text, "Pretended H200", size); return OK; }
int nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci) { memset(pci, 0, sizeof *pci); strcpy(pci->bus_id, "00000000:3B:00.0"); return OK; }
int nvmlEventSetCreate(void **set) { *set = &xids; return OK; }
int nvmlEventSetFree(void *set) { return OK; }
int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, void *set) { return types == 8 ? OK : NOT_SUPPORTED; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
  if (!xids) return TIMEOUT;
  xids--;
  memset(event, 0, sizeof *event);
  event->device = &only; event->type = 8; event->data = 79;
  return OK;
}
int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius) { *celsius = 61; return OK; }
int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) { *milliwatts = 480500; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *milliwatts) { *milliwatts = 700000; return OK; }
/* The limit is kept in the file that PRETENDED_POWER names: as a card's, it outlives whoever set it. */
int nvmlDeviceGetPowerManagementLimit(Device *device, unsigned *milliwatts) {
  FILE *file = fopen(getenv("PRETENDED_POWER"), "r");
  *milliwatts = 700000;
  if (file) { int got = fscanf(file, "%u", milliwatts); fclose(file); return got == 1 ? OK : NOT_SUPPORTED; }
  return OK;
}
int nvmlDeviceGetPowerManagementLimitConstraints(Device *device, unsigned *least, unsigned *most) { *least = 200000; *most = 700000; return OK; }
int nvmlDeviceSetPowerManagementLimit(Device *device, unsigned milliwatts) {
  FILE *file = fopen(getenv("PRETENDED_POWER"), "w");
  if (!file) return 4;
  fprintf(file, "%u", milliwatts);
  fclose(file);
  return OK;
}
int nvmlDeviceGetClockInfo(Device *device, unsigned kind, unsigned *mhz) { *mhz = kind == 1 ? 1755 : 3201; return OK; }
int nvmlDeviceGetMaxClockInfo(Device *device, unsigned kind, unsigned *mhz) { *mhz = 1980; return OK; }
int nvmlDeviceGetUtilizationRates(Device *device, Rates *rates) { rates->gpu = 97; rates->memory = 40; return OK; }
int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) { memory->total = 150000; memory->available = 50000; memory->used = 100000; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) { *reasons = 0x24; return OK; }
int nvmlDeviceGetTotalEccErrors(Device *device, unsigned kind, unsigned counter, unsigned long long *count) { *count = kind ? 0 : 3; return OK; }
int nvmlDeviceGetPcieReplayCounter(Device *device, unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetCurrPcieLinkWidth(Device *device, unsigned *lanes) { *lanes = 8; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(Device *device, unsigned *lanes) { *lanes = 16; return OK; }
int nvmlDeviceGetRetiredPages(Device *device, unsigned cause, unsigned *count, unsigned long long *pages) { return NOT_SUPPORTED; }
int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
  for (int i = 0; i < count; i++) {
    fields[i].answer = NOT_SUPPORTED;
    if (fields[i].field == 82) { fields[i].answer = OK; fields[i].type = 1; fields[i].value.u = 70; }
#ifdef OLD
    if (fields[i].field == 52) { fields[i].answer = OK; fields[i].type = 3; fields[i].value.ull = 5; }
#else
    if (fields[i].field == 161) { fields[i].answer = OK; fields[i].type = 3; fields[i].value.ull = 9; }
#endif
  }
  return OK;
}
#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses_v2(Device *device, unsigned *count, void *processes) { *count = 0; return OK; }
#else
int nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) { temperature->celsius = 62; return OK; }
int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) { memory->total = 150000; memory->reserved = 1000; memory->used = 99000; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) { *reasons = 0x04; return OK; }
int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  *corrected = 1; *uncorrected = 2; *pending = 1; *failed = 0;
  return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, void *processes) { *count = 0; return OK; }
#endif
