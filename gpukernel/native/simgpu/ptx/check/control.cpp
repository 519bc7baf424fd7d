// Control flow, barriers and the exchange between the threads of a warp (PTX ISA 9.7.12, 9.7.13).
#include "simgpu/ptx/check/forms.h"

namespace gpukernel::simgpu::ptx {

namespace {

constexpr Form kForms[] = {
    {"bra", "uni?", "l"},
    {"brx", "idx uni?", "u32 l"},
    {"call", "uni?", "l l?"},
    {"ret", "uni?", ""},
    {"exit", "", ""},
    {"trap", "", ""},
    {"brkpt", "", ""},
    {"pmevent", "mask?", "i"},
    {"nanosleep", "u32", "u32"},

    {"bar", "cta? sync", "u32 u32?"},
    {"bar", "cta? arrive", "u32 u32"},
    {"bar", "cta? red popc u32", "=u32 u32 p"},
    {"bar", "cta? red popc u32", "=u32 u32 u32 p"},
    {"bar", "cta? red and|or pred", "=p u32 p"},
    {"bar", "cta? red and|or pred", "=p u32 u32 p"},
    {"bar", "warp sync", "b32"},
    {"barrier", "cta? sync aligned?", "u32 u32?"},
    {"barrier", "cta? arrive aligned?", "u32 u32"},
    {"barrier", "cta? red popc aligned? u32", "=u32 u32 p"},
    {"barrier", "cta? red popc aligned? u32", "=u32 u32 u32 p"},
    {"barrier", "cta? red and|or aligned? pred", "=p u32 p"},
    {"barrier", "cta? red and|or aligned? pred", "=p u32 u32 p"},
    {"barrier", "cluster arrive release|relaxed? aligned?", ""},
    {"barrier", "cluster wait acquire? aligned?", ""},
    {"membar", "cta|gl|sys", ""},
    {"membar", "proxy alias", ""},
    {"fence", "sc|acq_rel|acquire|release? cta|gpu|sys|cluster", ""},
    {"fence", "proxy alias", ""},
    {"fence", "proxy async global|shared::cta|shared::cluster?", ""},
    {"fence", "acquire|release sync_restrict::shared::cluster|sync_restrict::shared::cta cluster", ""},
    {"fence", "mbarrier_init release cluster", ""},
    {"fence", "proxy tensormap::generic release cta|gpu|sys|cluster", ""},
    {"fence", "proxy tensormap::generic acquire cta|gpu|sys|cluster", "@ i"},
    {"fence",
     "proxy async::generic acquire|release sync_restrict::shared::cluster|sync_restrict::shared::cta cluster",
     ""},

    {"vote", "all|any|uni pred", "=p p"},
    {"vote", "ballot b32", "=b32 p"},
    {"vote", "sync all|any|uni pred", "=p p b32"},
    {"vote", "sync ballot b32", "=b32 p b32"},
    {"shfl", "up|down|bfly|idx b32", "=b32|p b32 u32 u32"},
    {"shfl", "sync up|down|bfly|idx b32", "=b32|p b32 u32 u32 b32"},
    {"match", "any sync T:b32|b64", "=b32 T b32"},
    {"match", "all sync T:b32|b64", "=b32|p T b32"},
    {"redux", "sync add|min|max T:u32|s32", "=T T b32"},
    {"redux", "sync and|or|xor b32", "=b32 b32 b32"},
    {"redux", "sync min|max abs? NaN? f32", "=f32 f32 b32"},
    {"activemask", "b32", "=b32"},
    {"elect", "sync", "=b32|p b32"},
    {"griddepcontrol", "launch_dependents|wait", ""},
    {"setmaxnreg", "inc|dec sync aligned u32", "i"},
    {"stacksave", "T:u32|u64", "=T"},
    {"stackrestore", "T:u32|u64", "T"},
    {"alloca", "T:u32|u64", "=T T i?"},
};

}  // namespace

std::span<const Form> control_forms() { return kForms; }

}  // namespace gpukernel::simgpu::ptx
