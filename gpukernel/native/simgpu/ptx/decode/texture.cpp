// Texture and surface instructions: their operands, and the references of module scope.
#include "simgpu/exec/texture.h"

#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

namespace {

struct Geometry {
    const char* name;
    uint8_t dimensions;
    bool layered, cube;
};
constexpr Geometry kGeometries[] = {
    {"1d", 1, false, false}, {"2d", 2, false, false},  {"3d", 3, false, false},  {"a1d", 1, true, false},
    {"a2d", 2, true, false}, {"cube", 3, false, true}, {"acube", 3, true, true},
};
constexpr std::pair<const char*, Query> kQueries[] = {
    {"width", Query::width},
    {"height", Query::height},
    {"depth", Query::depth},
    {"channel_data_type", Query::channel_type},
    {"channel_order", Query::channel_order},
    {"normalized_coords", Query::normalized},
    {"filter_mode", Query::filter},
    {"addr_mode_0", Query::addressing_0},
    {"addr_mode_1", Query::addressing_1},
    {"addr_mode_2", Query::addressing_2},
    {"array_size", Query::array_size},
    {"num_mipmap_levels", Query::levels},
    {"memory_layout", Query::memory_layout},
};

}  // namespace

// [texture, {coordinates}]: the handle is a register of 64 bits, or the name of a reference.
uint32_t Decoder::texture_place(const Operand& address, TexturePlan& plan, Type coordinate) {
    if (address.kind != Operand::address || address.value) wrong("expected a texture or surface in brackets");
    if (address.parts.size() == 3) lacking("samplers apart from textures");
    const Geometry* geometry = nullptr;
    for (const Geometry& g : kGeometries)
        if (has(g.name)) geometry = &g;
    if (!geometry) lacking();
    plan.dimensions = geometry->dimensions, plan.layered = geometry->layered, plan.cube = geometry->cube;
    if (address.parts.size() != 2) wrong("no coordinates");
    const Operand& at = address.parts[1];
    const std::vector<Operand> list = at.kind == Operand::vector ? at.parts : std::vector<Operand>{at};
    const size_t first = plan.layered ? 1 : 0;
    if (list.size() < first + plan.dimensions) wrong("too few coordinates");
    if (plan.layered) plan.layer = source(list[0], Type::u32);
    for (size_t d = 0; d < plan.dimensions; ++d) plan.at[d] = source(list[first + d], coordinate);
    return source(address.parts[0], Type::u64);
}

std::vector<uint32_t> Decoder::gradient(const Operand& o, size_t n) {
    const std::vector<Operand> list = o.kind == Operand::vector ? o.parts : std::vector<Operand>{o};
    if (list.size() < n) wrong("too few components of a gradient");
    std::vector<uint32_t> slots;
    for (size_t i = 0; i < n; ++i) slots.push_back(source(list[i], Type::f32));
    return slots;
}

void Decoder::emit_texture(const std::string& key, Op op, const TexturePlan& plan) {
    op.extra = static_cast<uint32_t>(out_.textures.size());
    op.pattern = kClobbers;
    out_.textures.push_back(plan);
    emit(key, op);
}

void Decoder::texture() {
    set_mode(0);
    const bool gathers = here_->parts[0] == "tld4";
    const std::vector<Type> named = types();
    if (named.size() != 2) wrong("a result and a coordinate type are needed");
    const Type result = named[0], coordinate = named[1];
    if (result == Type::f16x2) lacking("packed halves");
    if (coordinate != Type::f32 && coordinate != Type::s32) wrong("coordinates are .f32 or .s32");
    TexturePlan plan{};
    plan.use = gathers        ? TextureUse::gather
               : has("level") ? TextureUse::level
               : has("grad")  ? TextureUse::gradient
                              : TextureUse::sample;
    plan.integer_coordinates = coordinate == Type::s32;
    plan.half_results = result == Type::f16;
    plan.bytes = plan.half_results ? 2 : 4;
    if (!plan.half_results && result != Type::f32 && result != Type::s32 && result != Type::u32)
        wrong("a result is .f32, .f16, .s32 or .u32");
    for (const char* component : {"r", "g", "b", "a"})
        if (gathers && here_->parts[1] == component)
            plan.component = static_cast<uint8_t>(std::string_view("rgba").find(*component));
    Op op = fresh();
    op.a = texture_place(operand(1), plan, coordinate);
    if (gathers && (plan.dimensions == 1 || (plan.dimensions == 3 && !plan.cube)))
        wrong("it has two dimensions");
    if (plan.cube && plan.integer_coordinates) wrong("a cube's coordinates are .f32");
    size_t next = 2;
    if (plan.use == TextureUse::level) plan.level = source(operand(next++), coordinate);
    if (plan.use == TextureUse::gradient) {
        if (plan.integer_coordinates) wrong("gradients need coordinates of .f32");
        const auto dx = gradient(operand(next++), plan.dimensions),
                   dy = gradient(operand(next++), plan.dimensions);
        std::copy(dx.begin(), dx.end(), plan.dx), std::copy(dy.begin(), dy.end(), plan.dy);
    }
    if (here_->operands.size() > next) lacking("offsets and depth comparisons");
    const bool pair = operand(0).kind == Operand::pair;
    const Operand& to = pair ? operand(0).parts[0] : operand(0);
    if (to.kind != Operand::vector || to.parts.size() != 4) lacking("results that are no vector of four");
    for (size_t n = 0; n < 4; ++n) plan.value[n] = destination(to.parts[n], plan.bytes);
    if (pair) plan.tells_resident = true, plan.resident = destination(operand(0).parts[1], 0);
    emit_texture("tex", op, plan);
}

void Decoder::texture_query() {
    TexturePlan plan{};
    plan.use = TextureUse::query;
    const Query* found = nullptr;
    for (const auto& [name, query] : kQueries)
        if (has(name)) found = &query;
    if (!found) lacking();
    plan.query = *found;
    const Operand& address = operand(1);
    if (address.kind != Operand::address || address.parts.size() != 1 || address.value)
        wrong("expected a texture or surface in brackets");
    Op op = fresh();
    op.a = source(address.parts[0], Type::u64);
    if (has("level")) plan.level = source(operand(2), Type::u32);
    plan.elements = 1;
    plan.value[0] = destination(operand(0), 4);
    emit_texture("txq", op, plan);
}

void Decoder::surface() {
    const std::string& base = here_->parts[0];
    if (here_->parts.size() < 2 || here_->parts[1] != "b") lacking();
    TexturePlan plan{};
    plan.boundary = has("clamp") ? Boundary::clamp : has("zero") ? Boundary::zero : Boundary::trap;
    plan.elements = has("v4") ? 4 : has("v2") ? 2 : 1;
    const Type t = type();
    plan.bytes = static_cast<uint8_t>(size_of(t));
    const bool loads = base == "suld";
    Op op = fresh();
    op.a = texture_place(operand(loads ? 1 : 0), plan, Type::s32);
    if (plan.cube) wrong("surfaces have no cubes: their faces are layers");
    const Operand& value = operand(loads ? 0 : 1);
    const std::vector<Operand> list =
        value.kind == Operand::vector ? value.parts : std::vector<Operand>{value};
    if (list.size() != plan.elements || plan.bytes > 8) wrong("registers that do not fit the vector");
    if (base == "sured") {
        constexpr std::pair<const char*, TextureUse> kinds[] = {{"add", TextureUse::add},
                                                                {"min", TextureUse::min},
                                                                {"max", TextureUse::max},
                                                                {"and", TextureUse::bit_and},
                                                                {"or", TextureUse::bit_or}};
        plan.use = TextureUse::query;
        for (const auto& [name, use] : kinds)
            if (has(name)) plan.use = use;
        if (plan.use == TextureUse::query || plan.bytes < 4 || plan.elements != 1) lacking();
        plan.value[0] = source(list[0], t);
        op.access = AccessKind::atomic;
        return emit_texture("sured." + std::string(is_signed(t) ? "s" : "u") + bits(plan.bytes), op, plan);
    }
    const uint32_t room = std::max<uint32_t>(2, plan.bytes);
    const Type raw = room == 2 ? Type::b16 : room == 4 ? Type::b32 : Type::b64;
    plan.use = loads ? TextureUse::load : TextureUse::store;
    for (size_t n = 0; n < list.size(); ++n)
        plan.value[n] = loads ? destination(list[n], room) : source(list[n], raw, room);
    op.access = loads ? AccessKind::read : AccessKind::write;
    emit_texture(base + "." + bits(plan.bytes), op, plan);
}

}  // namespace gpukernel::simgpu::ptx
