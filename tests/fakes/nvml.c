/* A stand-in for libnvidia-ml.so.1. profile.h, generated from a node profile, has the answers.
 * FAKE_NVML_FAIL="nvmlDeviceGetName=999,..." makes calls answer a code, FAKE_NVML_HANG="nvmlDeviceGetName" never. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { long long v[F_COUNT]; const char *uuid, *name, *bus_id, *gsp, *serial; long long hist[5];
  int processes; struct { unsigned pid; unsigned long long used; } process[8]; int migs; const char *mig[7];
  int growth[36];
  int links, active[36]; const char *remote[36]; int speed, version; unsigned long long cpus[16], nodes[16]; } Gpu;
#include "profile.h"

static int guard(const char *name) {
  const char *hang = getenv("FAKE_NVML_HANG"), *fail = getenv("FAKE_NVML_FAIL");
  if (hang && !strcmp(hang, name)) for (;;) pause();
  if (fail) {
    const char *at = fail; size_t n = strlen(name);
    while ((at = strstr(at, name))) { if (at[n] == '=') return atoi(at + n + 1); at += n; }
  }
  return 0;
}
/* A value below -999 is a code: -1000 - code. */
#define BAD(x) ((x) <= -1000)
#define CODE(x) ((int)(-1000 - (x)))
#define G(name) int r_ = guard(name); if (r_) return r_
#define HANDLE(name) G(name); Gpu *g = h; if (BAD(g->v[F_LOST])) return CODE(g->v[F_LOST])
#define ONE(fn, fact) int fn(void *h, int *out) { HANDLE(#fn); if (BAD(g->v[fact])) return CODE(g->v[fact]); *out = (int)g->v[fact]; return 0; }
#define INDEXED(fn, k, a, b, c) int fn(void *h, int k_, int *out) { HANDLE(#fn); \
  long long x = k_ == 0 ? (a) : k_ == 1 ? (b) : (c); if (BAD(x)) return CODE(x); *out = (int)x; return 0; }
#define NO (-1003)

int nvmlInitWithFlags(unsigned f) { G("nvmlInit_v2"); return INIT; }
int nvmlInit_v2(void) { G("nvmlInit_v2"); return INIT; }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int c) { return "fake"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { G("nvmlSystemGetDriverVersion"); snprintf(s, n, "%s", DRIVER); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { G("nvmlSystemGetCudaDriverVersion_v2"); *v = CUDA; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { G("nvmlDeviceGetCount_v2"); *n = GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { G("nvmlDeviceGetHandleByIndex_v2");
  if (i >= GPUS) return 2; if (BAD(gpus[i].v[F_LOST])) return CODE(gpus[i].v[F_LOST]); *h = &gpus[i]; return 0; }
/* A MIG handle is the address of one of the names of its parent. */
static int is_mig(void *h) { return (char *)h < (char *)gpus || (char *)h >= (char *)(gpus + GPUS) || ((char *)h - (char *)gpus) % sizeof(Gpu); }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { G("nvmlDeviceGetUUID"); Gpu *g = h;
  if (is_mig(h)) { snprintf(s, n, "%s", *(const char **)h); return 0; }
  if (BAD(g->v[F_LOST])) return CODE(g->v[F_LOST]); snprintf(s, n, "%s", g->uuid); return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) { HANDLE("nvmlDeviceGetMaxMigDeviceCount"); if (BAD(g->v[F_MIG])) return CODE(g->v[F_MIG]); *n = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **out) { HANDLE("nvmlDeviceGetMigDeviceHandleByIndex");
  if (i >= (unsigned)g->migs || !g->mig[i]) return 6; *out = &g->mig[i]; return 0; }
int nvmlDeviceGetGpuInstanceId(void *h, unsigned *id) { G("nvmlDeviceGetGpuInstanceId"); *id = 7; return is_mig(h) ? 0 : 3; }
int nvmlDeviceGetComputeInstanceId(void *h, unsigned *id) { G("nvmlDeviceGetComputeInstanceId"); *id = 0; return is_mig(h) ? 0 : 3; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { HANDLE("nvmlDeviceGetName"); snprintf(s, n, "%s", g->name); return 0; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(void *h, Pci *p) { HANDLE("nvmlDeviceGetPciInfo_v3"); memset(p, 0, sizeof *p); strcpy(p->bus_id, g->bus_id); p->id = g->v[F_PCI_ID]; return 0; }
ONE(nvmlDeviceGetMinorNumber, F_MINOR)
ONE(nvmlDeviceGetArchitecture, F_ARCH)
ONE(nvmlDeviceGetModuleId, F_MODULE)
int nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) { HANDLE("nvmlDeviceGetCudaComputeCapability"); *a = g->v[F_CC] / 10; *b = g->v[F_CC] % 10; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) { HANDLE("nvmlDeviceGetMemoryInfo");
  m[0] = g->v[F_TOTAL]; m[2] = g->v[F_USED] + g->v[F_RESERVED]; m[1] = m[0] - m[2]; return 0; }
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(void *h, Memory2 *m) { HANDLE("nvmlDeviceGetMemoryInfo_v2");
  m->total = g->v[F_TOTAL]; m->reserved = g->v[F_RESERVED]; m->used = g->v[F_USED]; m->free = m->total - m->used - m->reserved; return 0; }
int nvmlDeviceGetBAR1MemoryInfo(void *h, unsigned long long *m) { HANDLE("nvmlDeviceGetBAR1MemoryInfo"); m[0] = g->v[F_BAR1]; m[1] = m[0]; m[2] = 0; return 0; }
ONE(nvmlDeviceGetComputeMode, F_COMPUTE_MODE)
ONE(nvmlDeviceGetPersistenceMode, F_PERSISTENCE)
ONE(nvmlDeviceGetVirtualizationMode, F_VIRTUAL)
int nvmlDeviceGetMigMode(void *h, unsigned *a, unsigned *b) { HANDLE("nvmlDeviceGetMigMode"); if (BAD(g->v[F_MIG])) return CODE(g->v[F_MIG]); *a = g->v[F_MIG]; *b = g->v[F_MIG_PENDING]; return 0; }
int nvmlDeviceGetEccMode(void *h, unsigned *a, unsigned *b) { HANDLE("nvmlDeviceGetEccMode"); if (BAD(g->v[F_ECC])) return CODE(g->v[F_ECC]); *a = g->v[F_ECC]; *b = g->v[F_ECC_PENDING]; return 0; }
int nvmlDeviceGetTotalEccErrors(void *h, int type, int counter, unsigned long long *out) { HANDLE("nvmlDeviceGetTotalEccErrors");
  if (BAD(g->v[F_ECC])) return CODE(g->v[F_ECC]); *out = g->v[(counter ? F_AGG_COR : F_VOL_COR) + (type == 1)]; return 0; }
int nvmlDeviceGetRemappedRows(void *h, unsigned *c, unsigned *u, unsigned *p, unsigned *f) { HANDLE("nvmlDeviceGetRemappedRows");
  if (BAD(g->v[F_REMAP_COR])) return CODE(g->v[F_REMAP_COR]);
  *c = g->v[F_REMAP_COR]; *u = g->v[F_REMAP_UNC]; *p = g->v[F_REMAP_PENDING]; *f = g->v[F_REMAP_FAILURE]; return 0; }
int nvmlDeviceGetRowRemapperHistogram(void *h, unsigned *out) { HANDLE("nvmlDeviceGetRowRemapperHistogram");
  if (BAD(g->v[F_REMAP_COR])) return 3; for (int i = 0; i < 5; i++) out[i] = g->hist[i]; return 0; }
ONE(nvmlDeviceGetRetiredPagesPendingStatus, F_RETIRED_PENDING)
int nvmlDeviceGetRetiredPages(void *h, int cause, unsigned *n, unsigned long long *pages) { HANDLE("nvmlDeviceGetRetiredPages");
  long long k = g->v[cause ? F_RETIRED_DBE : F_RETIRED_SBE]; if (BAD(k)) return CODE(k);
  if (!pages) { *n = k; return k ? 7 : 0; } for (int i = 0; i < k; i++) pages[i] = i; *n = k; return 0; }
INDEXED(nvmlDeviceGetTemperature, k, g->v[F_TEMP], NO, NO)
typedef struct { unsigned version; int margin; } Margin;
int nvmlDeviceGetMarginTemperature(void *h, Margin *m) { HANDLE("nvmlDeviceGetMarginTemperature"); if (BAD(g->v[F_TLIMIT])) return CODE(g->v[F_TLIMIT]); m->margin = g->v[F_TLIMIT]; return 0; }
INDEXED(nvmlDeviceGetTemperatureThreshold, k, NO, g->v[F_SLOWDOWN], NO)
ONE(nvmlDeviceGetPowerUsage, F_POWER)
ONE(nvmlDeviceGetEnforcedPowerLimit, F_POWER_LIMIT)
ONE(nvmlDeviceGetPowerManagementLimit, F_POWER_LIMIT)
ONE(nvmlDeviceGetPowerManagementDefaultLimit, F_POWER_DEFAULT)
INDEXED(nvmlDeviceGetClockInfo, k, NO, g->v[F_SM], NO)
INDEXED(nvmlDeviceGetMaxClockInfo, k, NO, g->v[F_SM_MAX], NO)
int nvmlDeviceGetUtilizationRates(void *h, unsigned *u) { HANDLE("nvmlDeviceGetUtilizationRates"); u[0] = g->v[F_UTILIZATION]; u[1] = 0; return 0; }
/* gpustat asks for these. */
int nvmlDeviceGetIndex(void *h, unsigned *out) { HANDLE("nvmlDeviceGetIndex"); *out = g - gpus; return 0; }
int nvmlDeviceGetFanSpeed(void *h, unsigned *out) { HANDLE("nvmlDeviceGetFanSpeed"); return 3; }
int nvmlDeviceGetEncoderUtilization(void *h, unsigned *out, unsigned *us) { HANDLE("nvmlDeviceGetEncoderUtilization"); *out = *us = 0; return 0; }
int nvmlDeviceGetDecoderUtilization(void *h, unsigned *out, unsigned *us) { HANDLE("nvmlDeviceGetDecoderUtilization"); *out = *us = 0; return 0; }
ONE(nvmlDeviceGetPerformanceState, F_PSTATE)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, F_GEN)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, F_GEN_MAX)
ONE(nvmlDeviceGetCurrPcieLinkWidth, F_WIDTH)
ONE(nvmlDeviceGetMaxPcieLinkWidth, F_WIDTH_MAX)
int nvmlDeviceGetPcieReplayCounter(void *h, unsigned *out) { HANDLE("nvmlDeviceGetPcieReplayCounter"); if (BAD(g->v[F_REPLAYS])) return CODE(g->v[F_REPLAYS]);
  *out = g->v[F_REPLAYS]; g->v[F_REPLAYS] += g->v[F_REPLAY_GROWTH]; return 0; }
ONE(nvmlDeviceGetGpuMaxPcieLinkGeneration, F_GEN_GPU)
INDEXED(nvmlDeviceGetApplicationsClock, k, NO, g->v[F_APP_SM], NO)
INDEXED(nvmlDeviceGetDefaultApplicationsClock, k, NO, g->v[F_APP_DEFAULT], NO)
int nvmlDeviceGetViolationStatus(void *h, int policy, unsigned long long *out) { HANDLE("nvmlDeviceGetViolationStatus"); if (BAD(g->v[F_THERMAL_NS])) return CODE(g->v[F_THERMAL_NS]);
  out[0] = 1; out[1] = g->v[F_THERMAL_NS]; return 0; }
int nvmlDeviceGetMemoryErrorCounter(void *h, int type, int counter, int place, unsigned long long *out) { HANDLE("nvmlDeviceGetMemoryErrorCounter");
  long long x = g->v[(type ? F_UNC_DRAM : F_COR_DRAM) + (place != 2)]; if (BAD(x)) return CODE(x); *out = x; return 0; }
int nvmlDeviceGetGspFirmwareMode(void *h, unsigned *on, unsigned *usual) { HANDLE("nvmlDeviceGetGspFirmwareMode"); if (BAD(g->v[F_GSP])) return CODE(g->v[F_GSP]); *on = g->v[F_GSP]; *usual = 1; return 0; }
int nvmlDeviceGetGspFirmwareVersion(void *h, char *s) { HANDLE("nvmlDeviceGetGspFirmwareVersion"); if (BAD(g->v[F_GSP])) return 3; strcpy(s, g->gsp); return 0; }
int nvmlSystemGetConfComputeState(unsigned *s) { G("nvmlSystemGetConfComputeState"); if (CC_ON < 0) return 3; s[0] = 0; s[1] = CC_ON; s[2] = 0; return 0; }
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } Sram;
int nvmlDeviceGetSramEccErrorStatus(void *h, Sram *s) { HANDLE("nvmlDeviceGetSramEccErrorStatus"); if (BAD(g->v[F_SRAM])) return CODE(g->v[F_SRAM]);
  if (s->version != (sizeof *s | 1 << 24)) return 25; memset(s->counts, 0, sizeof s->counts); s->exceeded = g->v[F_SRAM]; return 0; }
typedef struct { unsigned version; char guid[16], serial[16]; unsigned char slot, tray, host, peer, module; } Platform;
int nvmlDeviceGetPlatformInfo(void *h, Platform *p) { HANDLE("nvmlDeviceGetPlatformInfo"); if (BAD(g->v[F_SLOT])) return CODE(g->v[F_SLOT]);
  if (p->version != (sizeof *p | 2 << 24)) return 25; strcpy(p->serial, g->serial); p->slot = g->v[F_SLOT]; p->tray = g->v[F_TRAY]; p->host = p->peer = 1; p->module = 0; return 0; }
ONE(nvmlDeviceGetNumaNodeId, F_GPU_NUMA)
int nvmlDeviceGetCpuAffinity(void *h, unsigned n, unsigned long *m) { HANDLE("nvmlDeviceGetCpuAffinity"); for (unsigned i = 0; i < n && i < 16; i++) m[i] = g->cpus[i]; return 0; }
int nvmlDeviceGetMemoryAffinity(void *h, unsigned n, unsigned long *m, int s) { HANDLE("nvmlDeviceGetMemoryAffinity"); for (unsigned i = 0; i < n && i < 16; i++) m[i] = g->nodes[i]; return 0; }
int nvmlDeviceValidateInforom(void *h) { HANDLE("nvmlDeviceValidateInforom"); return g->v[F_INFOROM]; }
int nvmlDeviceGetCurrentClocksEventReasons(void *h, unsigned long long *out) { HANDLE("nvmlDeviceGetCurrentClocksEventReasons"); *out = g->v[F_THROTTLE]; return 0; }
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, Process *p) { HANDLE("nvmlDeviceGetComputeRunningProcesses_v3"); if (BAD(g->v[F_PROCESSES])) return CODE(g->v[F_PROCESSES]);
  unsigned have = *n; *n = g->processes; if (have < *n) return 7;
  for (unsigned i = 0; i < *n; i++) { p[i].pid = g->process[i].pid; p[i].used = g->process[i].used; } return 0; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *n, Process *p) { HANDLE("nvmlDeviceGetGraphicsRunningProcesses_v3"); unsigned have = *n; *n = g->v[F_GRAPHICS]; return have < *n ? 7 : 0; }
typedef struct { unsigned id, scope; long long stamp, latency; unsigned type; int ret; unsigned long long value; } Field;
int nvmlDeviceGetFieldValues(void *h, int n, Field *f) { HANDLE("nvmlDeviceGetFieldValues");
  for (int i = 0; i < n; i++) { long long x = f[i].id == 230 ? g->v[F_RECOVERY] : f[i].id == 91 ? g->links : f[i].id == 147 ? g->v[F_SWITCH_LINKS]
      : f[i].id >= 193 && f[i].id <= 196 ? g->v[F_MARGIN_193 + f[i].id - 193] : f[i].id == 170 ? g->v[F_C2C] : f[i].id == 164 ? (g->active[f[i].scope] ? g->speed : 0) : NO;
    f[i].type = x < 0 ? 5 : 1; f[i].ret = BAD(x) ? CODE(x) : 0; f[i].value = BAD(x) ? 0 : x; } return 0; }
int nvmlDeviceGetNvLinkState(void *h, unsigned l, int *out) { HANDLE("nvmlDeviceGetNvLinkState"); if (l >= (unsigned)g->links) return g->links ? 2 : 3; *out = g->active[l]; return 0; }
int nvmlDeviceGetNvLinkVersion(void *h, unsigned l, unsigned *out) { HANDLE("nvmlDeviceGetNvLinkVersion"); *out = g->version; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned l, int *out) { HANDLE("nvmlDeviceGetNvLinkRemoteDeviceType"); *out = g->remote[l][0] == 'F' ? 255 : g->v[F_SWITCHED] ? 2 : 0; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned l, Pci *p) { HANDLE("nvmlDeviceGetNvLinkRemotePciInfo_v2"); memset(p, 0, sizeof *p); strcpy(p->bus_id, g->remote[l]); return 0; }
int nvmlDeviceGetNvLinkErrorCounter(void *h, unsigned l, int c, unsigned long long *out) { HANDLE("nvmlDeviceGetNvLinkErrorCounter"); if (l >= 36) return 2;
  static unsigned long long seen[8][36][5]; unsigned long long *at = &seen[(g - gpus) % 8][l][c % 5]; *out = *at; *at += g->growth[l]; return 0; }
typedef struct { unsigned version; unsigned char uuid[16]; int status; unsigned clique; unsigned char state; unsigned mask; unsigned char summary; } Fabric;
typedef struct { unsigned char uuid[16]; int status; unsigned clique; unsigned char state; } Fabric1;
static void registered(Gpu *g, unsigned char *uuid, int *status, unsigned *clique, unsigned char *state) {
  memset(uuid, 0, 16); uuid[15] = g->v[F_CLUSTER]; *status = g->v[F_FABRIC_STATUS]; *clique = g->v[F_CLIQUE]; *state = g->v[F_FABRIC]; }
/* FABRIC_VERSION is the newest structure that this driver knows; 1 has a call of its own. */
int nvmlDeviceGetGpuFabricInfoV(void *h, Fabric *f) { HANDLE("nvmlDeviceGetGpuFabricInfoV"); if (FABRIC_VERSION < 2) return 13;
  if (BAD(g->v[F_FABRIC])) return CODE(g->v[F_FABRIC]); int version = f->version >> 24;
  if (version > FABRIC_VERSION || version < 2) return 25; registered(g, f->uuid, &f->status, &f->clique, &f->state);
  f->mask = g->v[F_FABRIC_MASK]; if (version > 2) f->summary = 0; return 0; }
int nvmlDeviceGetGpuFabricInfo(void *h, Fabric1 *f) { HANDLE("nvmlDeviceGetGpuFabricInfo"); if (BAD(g->v[F_FABRIC])) return CODE(g->v[F_FABRIC]);
  registered(g, f->uuid, &f->status, &f->clique, &f->state); return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *h, void *b, int *out) { HANDLE("nvmlDeviceGetTopologyCommonAncestor"); *out = levels[g - gpus][(Gpu *)b - gpus]; return 0; }
int nvmlDeviceGetP2PStatus(void *h, void *b, int k, int *out) { HANDLE("nvmlDeviceGetP2PStatus"); *out = p2p[g - gpus][(Gpu *)b - gpus][k]; return 0; }
