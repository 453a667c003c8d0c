/* A stand-in for libnvidia-ml.so.1. profile.h, generated from a node profile, has the answers.
 * FAKE_NVML_FAIL="nvmlDeviceGetName=999,..." makes calls answer a code, FAKE_NVML_HANG="nvmlDeviceGetName" never. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { long long v[F_COUNT]; const char *uuid, *name, *bus_id; long long hist[5];
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
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { HANDLE("nvmlDeviceGetUUID"); snprintf(s, n, "%s", g->uuid); return 0; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { HANDLE("nvmlDeviceGetName"); snprintf(s, n, "%s", g->name); return 0; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(void *h, Pci *p) { HANDLE("nvmlDeviceGetPciInfo_v3"); memset(p, 0, sizeof *p); strcpy(p->bus_id, g->bus_id); return 0; }
ONE(nvmlDeviceGetMinorNumber, F_MINOR)
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
int nvmlDeviceGetMigMode(void *h, unsigned *a, unsigned *b) { HANDLE("nvmlDeviceGetMigMode"); if (BAD(g->v[F_MIG])) return CODE(g->v[F_MIG]); *a = *b = g->v[F_MIG]; return 0; }
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
ONE(nvmlDeviceGetPowerManagementDefaultLimit, F_POWER_DEFAULT)
INDEXED(nvmlDeviceGetClockInfo, k, NO, g->v[F_SM], NO)
INDEXED(nvmlDeviceGetMaxClockInfo, k, NO, g->v[F_SM_MAX], NO)
int nvmlDeviceGetUtilizationRates(void *h, unsigned *u) { HANDLE("nvmlDeviceGetUtilizationRates"); u[0] = u[1] = 0; return 0; }
ONE(nvmlDeviceGetPerformanceState, F_PSTATE)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, F_GEN)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, F_GEN_MAX)
ONE(nvmlDeviceGetCurrPcieLinkWidth, F_WIDTH)
ONE(nvmlDeviceGetMaxPcieLinkWidth, F_WIDTH_MAX)
ONE(nvmlDeviceGetPcieReplayCounter, F_REPLAYS)
ONE(nvmlDeviceGetNumaNodeId, F_GPU_NUMA)
int nvmlDeviceGetCpuAffinity(void *h, unsigned n, unsigned long *m) { HANDLE("nvmlDeviceGetCpuAffinity"); for (unsigned i = 0; i < n && i < 16; i++) m[i] = g->cpus[i]; return 0; }
int nvmlDeviceGetMemoryAffinity(void *h, unsigned n, unsigned long *m, int s) { HANDLE("nvmlDeviceGetMemoryAffinity"); for (unsigned i = 0; i < n && i < 16; i++) m[i] = g->nodes[i]; return 0; }
int nvmlDeviceValidateInforom(void *h) { HANDLE("nvmlDeviceValidateInforom"); return g->v[F_INFOROM]; }
int nvmlDeviceGetCurrentClocksEventReasons(void *h, unsigned long long *out) { HANDLE("nvmlDeviceGetCurrentClocksEventReasons"); *out = g->v[F_THROTTLE]; return 0; }
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, Process *p) { HANDLE("nvmlDeviceGetComputeRunningProcesses_v3"); *n = 0; return 0; }
typedef struct { unsigned id, scope; long long stamp, latency; unsigned type; int ret; unsigned long long value; } Field;
int nvmlDeviceGetFieldValues(void *h, int n, Field *f) { HANDLE("nvmlDeviceGetFieldValues");
  for (int i = 0; i < n; i++) { long long x = f[i].id == 230 ? g->v[F_RECOVERY] : f[i].id == 91 ? g->links : f[i].id == 147 ? g->v[F_SWITCH_LINKS]
      : f[i].id == 164 ? (g->active[f[i].scope] ? g->speed : 0) : NO;
    f[i].type = 1; f[i].ret = BAD(x) ? CODE(x) : 0; f[i].value = BAD(x) ? 0 : x; } return 0; }
int nvmlDeviceGetNvLinkState(void *h, unsigned l, int *out) { HANDLE("nvmlDeviceGetNvLinkState"); if (l >= (unsigned)g->links) return g->links ? 2 : 3; *out = g->active[l]; return 0; }
int nvmlDeviceGetNvLinkVersion(void *h, unsigned l, unsigned *out) { HANDLE("nvmlDeviceGetNvLinkVersion"); *out = g->version; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned l, int *out) { HANDLE("nvmlDeviceGetNvLinkRemoteDeviceType"); *out = g->remote[l][0] == 'F' ? 255 : g->v[F_SWITCHED] ? 2 : 0; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned l, Pci *p) { HANDLE("nvmlDeviceGetNvLinkRemotePciInfo_v2"); memset(p, 0, sizeof *p); strcpy(p->bus_id, g->remote[l]); return 0; }
int nvmlDeviceGetNvLinkErrorCounter(void *h, unsigned l, int c, unsigned long long *out) { HANDLE("nvmlDeviceGetNvLinkErrorCounter"); *out = 0; return 0; }
typedef struct { unsigned version; unsigned char uuid[16]; int status; unsigned clique, state, mask; unsigned char summary; } Fabric;
int nvmlDeviceGetGpuFabricInfoV(void *h, Fabric *f) { HANDLE("nvmlDeviceGetGpuFabricInfoV"); if (BAD(g->v[F_FABRIC])) return CODE(g->v[F_FABRIC]);
  if (f->version >> 24 != 3) return 25; memset(f->uuid, 0, 16); f->state = g->v[F_FABRIC]; f->status = g->v[F_FABRIC_STATUS]; f->clique = 0;
  f->mask = g->v[F_FABRIC_MASK]; f->summary = 0; return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *h, void *b, int *out) { HANDLE("nvmlDeviceGetTopologyCommonAncestor"); *out = levels[g - gpus][(Gpu *)b - gpus]; return 0; }
int nvmlDeviceGetP2PStatus(void *h, void *b, int k, int *out) { HANDLE("nvmlDeviceGetP2PStatus"); *out = p2p[g - gpus][(Gpu *)b - gpus][k]; return 0; }
