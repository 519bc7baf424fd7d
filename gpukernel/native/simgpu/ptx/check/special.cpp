// Instructions whose operands their decoders know best: textures, matrices, video, copies that go on by
// themselves.  Here stand their modifiers.
#include "simgpu/ptx/check/forms.h"

namespace gpukernel::simgpu::ptx {

namespace {

constexpr Form kForms[] = {
    {"tex", "level|grad? 1d|2d|3d|a1d|a2d|cube|acube v4|v2 $texel f32|s32", "..."},
    {"tex", "base? 1d|2d|3d|a1d|a2d|cube|acube|2dms|a2dms v4|v2 $texel f32|s32", "..."},
    {"tld4", "r|g|b|a 2d|a2d|cube|acube v4 $texel f32", "..."},
    {"txq", "$query b32", "=b32 ..."},
    {"txq", "level $query b32", "=b32 @ ..."},
    {"suq", "width|height|depth|channel_data_type|channel_order|array_size|memory_layout b32", "=b32 ..."},
    {"suld", "b 1d|2d|3d|a1d|a2d ca|cg|cs|cv? v2|v4? b8|b16|b32|b64 $clamp", "..."},
    {"sust", "b 1d|2d|3d|a1d|a2d wb|cg|cs|wt? v2|v4? b8|b16|b32|b64 $clamp", "..."},
    {"sust", "p 1d|2d|3d|a1d|a2d wb|cg|cs|wt? v2|v4? b32|u32|s32|f32 $clamp", "..."},
    {"sured", "b add|min|max|and|or 1d|2d|3d|a1d|a2d u32|u64|s32|b32|s64 $clamp", "..."},
    {"sured", "p add|min|max|and|or 1d|2d|3d|a1d|a2d b32|b64 $clamp", "..."},
    {"istypep", "texref|samplerref|surfref", "..."},

    {"mma", "sync aligned $shape row|col row|col satfinite? $element $element $element $element", "..."},
    {"mma", "sync aligned $shape row|col row|col satfinite? s32 b1 b1 s32 xor|and popc", "..."},
    {"mma",
     "sp|sp::ordered_metadata sync aligned $shape row|col row|col satfinite? kind::f8f6f4? $element $element "
     "$element $element",
     "..."},
    {"mma",
     "sync aligned $shape row|col row|col $kind block_scale? $scale? $element $element $element $element "
     "$element?",
     "..."},
    {"mma",
     "sp|sp::ordered_metadata sync aligned $shape row|col row|col $kind block_scale? $scale? $element "
     "$element $element $element $element?",
     "..."},
    {"wmma", "load a|b|c sync aligned row|col $shape $ldspace? $element", "..."},
    {"wmma", "store d sync aligned row|col $shape $ldspace? $element", "..."},
    {"wmma",
     "mma sync aligned row|col row|col $shape $round? $element $element $element? $element? satfinite?",
     "..."},
    {"wmma", "mma xor|and popc sync aligned row|col row|col $shape s32 b1 b1 s32", "..."},
    {"ldmatrix",
     "sync aligned m8n8|m16n16|m8n16 x1|x2|x4 trans? $ldspace? b16|b8|b8x16 "
     "b6x16_p32|b4x16_p64?",
     "..."},
    {"stmatrix", "sync aligned m8n8|m16n8 x1|x2|x4 trans? $ldspace? b16|b8", "..."},
    {"movmatrix", "sync aligned m8n8 trans b16", "=b32 b32"},
    {"wgmma", "fence|commit_group|wait_group sync aligned", "..."},
    {"wgmma", "mma_async sp? sync aligned $wshape $element $element $element satfinite?", "..."},
    {"wgmma", "mma_async sp? sync aligned $wshape s32 b1 b1 and popc", "..."},

    {"cp", "async ca|cg $shared $global L2::cache_hint? L2::64B|L2::128B|L2::256B?", "@ @ i ..."},
    {"cp", "async commit_group|wait_all", ""},
    {"cp", "async wait_group", "i"},
    {"cp", "async mbarrier arrive noinc? $shared? b64", "@"},
    {"cp", "async mbarrier::arrive noinc? $shared? b64", "@"},
    {"cp", "async bulk commit_group", ""},
    {"cp", "async bulk wait_group read?", "i"},
    {"cp",
     "async bulk $shared|global $shared|global mbarrier::complete_tx::bytes|bulk_group multicast::cluster? "
     "L2::cache_hint? cp_mask?",
     "@ @ u32 ..."},
    {"cp", "async bulk prefetch L2 global L2::cache_hint?", "@ u32 b64?"},
    {"cp",
     "reduce async bulk $shared|global $shared|global mbarrier::complete_tx::bytes|bulk_group "
     "L2::cache_hint? "
     "and|or|xor|add|inc|dec|min|max noftz? f16|bf16|b32|u32|s32|b64|u64|s64|f32|f64",
     "@ @ u32 ..."},
    {"cp",
     "async bulk tensor $dimensions shared::cluster global $tile? mbarrier::complete_tx::bytes "
     "multicast::cluster? cta_group::1|cta_group::2? L2::cache_hint?",
     "@ @ @ ..."},
    {"cp",
     "async bulk tensor $dimensions shared::cta global $tile? mbarrier::complete_tx::bytes "
     "cta_group::1|cta_group::2? L2::cache_hint?",
     "@ @ @ ..."},
    {"cp", "async bulk tensor $dimensions global shared::cta $store? bulk_group L2::cache_hint?", "@ @ b64?"},
    {"cp",
     "reduce async bulk tensor $dimensions global shared::cta add|min|max|inc|dec|and|or|xor $store? "
     "bulk_group L2::cache_hint?",
     "@ @ b64?"},
    {"cp", "async bulk prefetch tensor $dimensions L2 global $tile? L2::cache_hint?", "@ ..."},
    {"mbarrier", "init $shared? b64", "@ u32"},
    {"mbarrier", "inval $shared? b64", "@"},
    {"mbarrier", "expect_tx|complete_tx relaxed? cta|cluster? $shared? b64", "@ u32"},
    {"mbarrier", "arrive|arrive_drop noComplete? release|relaxed? cta|cluster? $shared? b64", "any ..."},
    {"mbarrier", "arrive|arrive_drop expect_tx release|relaxed? cta|cluster? $shared? b64", "any @ ..."},
    {"mbarrier", "arrive|arrive_drop expect_tx release|relaxed? cta|cluster? $shared? b64", "@ u32"},
    {"mbarrier", "test_wait|try_wait parity? acquire|relaxed? cta|cluster? $shared? b64", "=p @ any u32?"},
    {"mbarrier", "pending_count b64", "=u32 b64"},
    {"tensormap", "replace tile $mapfield global|shared::cta? b1024 b32|b64", "@ any any?"},
    {"tensormap",
     "cp_fenceproxy global shared::cta tensormap::generic release cta|cluster|gpu|sys sync aligned", "@ @ i"},
    {"multimem", "$tensor", "..."},
    {"tcgen05", "$tensor", "..."},
    {"clusterlaunchcontrol", "$tensor", "..."},

    {"vadd", "$v $v $v sat? add|min|max?", "any any any any?"},
    {"vsub", "$v $v $v sat? add|min|max?", "any any any any?"},
    {"vabsdiff", "$v $v $v sat? add|min|max?", "any any any any?"},
    {"vmin", "$v $v $v sat? add|min|max?", "any any any any?"},
    {"vmax", "$v $v $v sat? add|min|max?", "any any any any?"},
    {"vshl", "$v $v u32 sat? clamp|wrap add|min|max?", "any any any any?"},
    {"vshr", "$v $v u32 sat? clamp|wrap add|min|max?", "any any any any?"},
    {"vmad", "$v $v $v sat? shr7|shr15?", "any any any any"},
    {"vmad", "$v $v $v po sat? shr7|shr15?", "any any any any"},
    {"vset", "$v $v eq|ne|lt|le|gt|ge add|min|max?", "any any any any?"},
    {"vadd2", "$v $v $v sat? add?", "any any any any"},
    {"vsub2", "$v $v $v sat? add?", "any any any any"},
    {"vavrg2", "$v $v $v sat? add?", "any any any any"},
    {"vabsdiff2", "$v $v $v sat? add?", "any any any any"},
    {"vmin2", "$v $v $v sat? add?", "any any any any"},
    {"vmax2", "$v $v $v sat? add?", "any any any any"},
    {"vset2", "$v $v eq|ne|lt|le|gt|ge add?", "any any any any"},
    {"vadd4", "$v $v $v sat? add?", "any any any any"},
    {"vsub4", "$v $v $v sat? add?", "any any any any"},
    {"vavrg4", "$v $v $v sat? add?", "any any any any"},
    {"vabsdiff4", "$v $v $v sat? add?", "any any any any"},
    {"vmin4", "$v $v $v sat? add?", "any any any any"},
    {"vmax4", "$v $v $v sat? add?", "any any any any"},
    {"vset4", "$v $v eq|ne|lt|le|gt|ge add?", "any any any any"},
};

}  // namespace

std::span<const Form> special_forms() { return kForms; }

}  // namespace gpukernel::simgpu::ptx
