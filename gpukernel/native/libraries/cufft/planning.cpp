// cuFFT's functions that make and describe plans: the same in the program and beside the simulated GPU.
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>

#include "libraries/cufft/plan.h"

namespace gpukernel::libraries {
const int NOT_SUPPORTED_STATUS = cufft::NOT_SUPPORTED;
}

namespace gpukernel::libraries::cufft {

namespace {
constexpr int VERSION = GPUKERNEL_MAJOR == 10 ? 10900 : GPUKERNEL_MAJOR == 11 ? 11401 : 12000;
constexpr size_t MOST_PLANS = 100000;

struct Plans {
    std::mutex mutex;
    std::map<int, std::shared_ptr<Plan>> all;
    int last = 0;
};
Plans& plans() {
    static Plans* const only = new Plans;  // threads may be inside at exit
    return *only;
}
std::shared_ptr<Plan> find(int handle) {
    std::lock_guard lock(plans().mutex);
    const auto it = plans().all.find(handle);
    return it == plans().all.end() ? nullptr : it->second;
}

template <class Number>
struct Request {
    int rank;
    const Number* n;
    const Number* inembed;
    int64_t istride, idist;
    const Number* onembed;
    int64_t ostride, odist;
    int64_t batch, input_type, output_type, execution_type;
};

// A program that names no dimensions of either side has both packed, whatever strides it says.
void pack(Shape& shape) {
    shape.plain = 1;
    for (const bool input : {true, false}) {
        Embedding& side = input ? shape.input : shape.output;
        const bool halved = input ? complex_to_real(shape) : real_to_complex(shape);
        side.stride = side.dist = 1;
        for (int i = 0; i < shape.rank; ++i) {
            side.embed[i] = i + 1 == shape.rank && halved ? shape.n[i] / 2 + 1 : shape.n[i];
            if (__builtin_mul_overflow(side.dist, side.embed[i], &side.dist)) side.dist = -1;
        }
    }
}

template <class Number>
int shape_of(const Request<Number>& asked, Shape& shape) {
    shape = {};
    if (asked.rank < 1 || asked.rank > MOST_DIMENSIONS || !asked.n) return INVALID_VALUE;
    shape.rank = asked.rank, shape.batch = asked.batch;
    shape.input_type = asked.input_type, shape.output_type = asked.output_type;
    shape.execution_type = asked.execution_type;
    for (int i = 0; i < asked.rank; ++i)
        if ((shape.n[i] = asked.n[i]) < 1) return INVALID_SIZE;
    if (!asked.inembed || !asked.onembed) {
        pack(shape);
    } else {
        shape.plain = 0;
        for (int i = 0; i < asked.rank; ++i)
            shape.input.embed[i] = asked.inembed[i], shape.output.embed[i] = asked.onembed[i];
        shape.input.stride = asked.istride, shape.input.dist = asked.idist;
        shape.output.stride = asked.ostride, shape.output.dist = asked.odist;
    }
    return check(shape);
}

bool types_of(int type, int64_t& input, int64_t& output, int64_t& execution) {
    const bool wide = type & 0x40;
    switch (type) {
        case C2C:
        case Z2Z:
            input = output = wide ? C_64F : C_32F;
            break;
        case R2C:
        case D2Z:
            input = wide ? R_64F : R_32F, output = wide ? C_64F : C_32F;
            break;
        case C2R:
        case Z2D:
            input = wide ? C_64F : C_32F, output = wide ? R_64F : R_32F;
            break;
        default:
            return false;
    }
    execution = wide ? C_64F : C_32F;
    return true;
}

template <class Number>
int shape_of(int rank, const Number* n, const Number* inembed, int64_t istride, int64_t idist,
             const Number* onembed, int64_t ostride, int64_t odist, int type, int64_t batch, Shape& shape) {
    Request<Number> asked{rank, n, inembed, istride, idist, onembed, ostride, odist, batch, 0, 0, 0};
    if (!types_of(type, asked.input_type, asked.output_type, asked.execution_type)) return INVALID_VALUE;
    return shape_of(asked, shape);
}

// Gives a plan its shape.  It needs no work area of the program's: what the worker's library takes for it is
// charged to the slice when it is first used.
int make(int handle, int status, const Shape& shape, size_t* work) {
    const auto plan = find(handle);
    if (!plan) return INVALID_PLAN;
    if (status) return status;
    if (plan->shape.rank) return INVALID_PLAN;  // made already
    plan->shape = shape;
    if (work) *work = 0;
    return SUCCESS;
}
int size(int status, size_t* work) {
    if (!work) return INVALID_VALUE;
    if (!status) *work = 0;
    return status;
}
int size_for(int handle, int status, size_t* work) {
    return find(handle) ? size(status, work) : INVALID_PLAN;
}
int create(int* handle, Plan&& plan) {
    if (const int status = begin(plan)) return status;
    std::lock_guard lock(plans().mutex);
    if (plans().all.size() >= MOST_PLANS) return ALLOC_FAILED;
    while (plans().all.contains(++plans().last) || plans().last <= 0)
        if (plans().last <= 0 || plans().last == INT32_MAX) plans().last = 0;
    plans().all[plans().last] = std::make_shared<Plan>(std::move(plan));
    *handle = plans().last;
    return SUCCESS;
}
int create_made(int* handle, int status, const Shape& shape) {
    if (!handle) return INVALID_VALUE;
    if (status) return status;
    Plan plan;
    plan.shape = shape;
    return create(handle, std::move(plan));
}

int run(int handle, const void* input, void* output, int direction, int type) {
    const auto plan = find(handle);
    if (!plan || !plan->shape.rank) return INVALID_PLAN;
    const Shape& shape = plan->shape;
    if (type) {
        int64_t in = 0, out = 0, execution = 0;
        types_of(type, in, out, execution);
        if (in != shape.input_type || out != shape.output_type) return INVALID_VALUE;
    }
    if (real_to_complex(shape)) direction = FORWARD;
    if (complex_to_real(shape)) direction = INVERSE;
    if (!input || !output || (direction != FORWARD && direction != INVERSE)) return INVALID_VALUE;
    return execute(*plan, input, output, direction);
}
}  // namespace

GPUKERNEL_EXPORT int cufftCreate(int* handle) { return handle ? create(handle, {}) : INVALID_VALUE; }

GPUKERNEL_EXPORT int cufftDestroy(int handle) {
    std::shared_ptr<Plan> plan;
    {
        std::lock_guard lock(plans().mutex);
        const auto it = plans().all.find(handle);
        if (it == plans().all.end()) return INVALID_PLAN;
        plan = std::move(it->second);
        plans().all.erase(it);
    }
    end(*plan);
    return SUCCESS;
}

GPUKERNEL_EXPORT int cufftSetStream(int handle, CUstream stream) {
    const auto plan = find(handle);
    if (!plan) return INVALID_PLAN;
    plan->stream = stream;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cufftSetAutoAllocation(int handle, int automatic) {
    const auto plan = find(handle);
    if (!plan || plan->shape.rank) return INVALID_PLAN;
    plan->auto_allocation = automatic;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cufftSetWorkArea(int handle, void*) { return find(handle) ? SUCCESS : INVALID_PLAN; }
GPUKERNEL_EXPORT int cufftGetSize(int handle, size_t* work) {
    const auto plan = find(handle);
    return plan && plan->shape.rank ? size(SUCCESS, work) : INVALID_PLAN;
}

// --- one, two and three dimensions, packed ---

static int packed(std::initializer_list<int> n, int type, int64_t batch, Shape& shape) {
    return shape_of<int>(static_cast<int>(n.size()), n.begin(), nullptr, 1, 0, nullptr, 1, 0, type, batch,
                         shape);
}

GPUKERNEL_EXPORT int cufftPlan1d(int* handle, int nx, int type, int batch) {
    Shape shape;
    const int status = packed({nx}, type, batch, shape);
    return create_made(handle, status, shape);
}
GPUKERNEL_EXPORT int cufftMakePlan1d(int handle, int nx, int type, int batch, size_t* work) {
    Shape shape;
    const int status = packed({nx}, type, batch, shape);
    return make(handle, status, shape, work);
}
GPUKERNEL_EXPORT int cufftGetSize1d(int handle, int nx, int type, int batch, size_t* work) {
    Shape shape;
    return size_for(handle, packed({nx}, type, batch, shape), work);
}
GPUKERNEL_EXPORT int cufftEstimate1d(int nx, int type, int batch, size_t* work) {
    Shape shape;
    return size(packed({nx}, type, batch, shape), work);
}

GPUKERNEL_EXPORT int cufftPlan2d(int* handle, int nx, int ny, int type) {
    Shape shape;
    const int status = packed({nx, ny}, type, 1, shape);
    return create_made(handle, status, shape);
}
GPUKERNEL_EXPORT int cufftMakePlan2d(int handle, int nx, int ny, int type, size_t* work) {
    Shape shape;
    const int status = packed({nx, ny}, type, 1, shape);
    return make(handle, status, shape, work);
}
GPUKERNEL_EXPORT int cufftGetSize2d(int handle, int nx, int ny, int type, size_t* work) {
    Shape shape;
    return size_for(handle, packed({nx, ny}, type, 1, shape), work);
}
GPUKERNEL_EXPORT int cufftEstimate2d(int nx, int ny, int type, size_t* work) {
    Shape shape;
    return size(packed({nx, ny}, type, 1, shape), work);
}

GPUKERNEL_EXPORT int cufftPlan3d(int* handle, int nx, int ny, int nz, int type) {
    Shape shape;
    const int status = packed({nx, ny, nz}, type, 1, shape);
    return create_made(handle, status, shape);
}
GPUKERNEL_EXPORT int cufftMakePlan3d(int handle, int nx, int ny, int nz, int type, size_t* work) {
    Shape shape;
    const int status = packed({nx, ny, nz}, type, 1, shape);
    return make(handle, status, shape, work);
}
GPUKERNEL_EXPORT int cufftGetSize3d(int handle, int nx, int ny, int nz, int type, size_t* work) {
    Shape shape;
    return size_for(handle, packed({nx, ny, nz}, type, 1, shape), work);
}
GPUKERNEL_EXPORT int cufftEstimate3d(int nx, int ny, int nz, int type, size_t* work) {
    Shape shape;
    return size(packed({nx, ny, nz}, type, 1, shape), work);
}

// --- any layout ---

GPUKERNEL_EXPORT int cufftPlanMany(int* handle, int rank, int* n, int* inembed, int istride, int idist,
                                   int* onembed, int ostride, int odist, int type, int batch) {
    Shape shape;
    const int status =
        shape_of<int>(rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch, shape);
    return create_made(handle, status, shape);
}
GPUKERNEL_EXPORT int cufftMakePlanMany(int handle, int rank, int* n, int* inembed, int istride, int idist,
                                       int* onembed, int ostride, int odist, int type, int batch,
                                       size_t* work) {
    Shape shape;
    const int status =
        shape_of<int>(rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch, shape);
    return make(handle, status, shape, work);
}
GPUKERNEL_EXPORT int cufftMakePlanMany64(int handle, int rank, long long* n, long long* inembed,
                                         long long istride, long long idist, long long* onembed,
                                         long long ostride, long long odist, int type, long long batch,
                                         size_t* work) {
    Shape shape;
    const int status =
        shape_of<long long>(rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch, shape);
    return make(handle, status, shape, work);
}
GPUKERNEL_EXPORT int cufftXtMakePlanMany(int handle, int rank, long long* n, long long* inembed,
                                         long long istride, long long idist, int input_type,
                                         long long* onembed, long long ostride, long long odist,
                                         int output_type, long long batch, size_t* work, int execution_type) {
    Shape shape;
    const int status = shape_of<long long>({rank, n, inembed, istride, idist, onembed, ostride, odist, batch,
                                            input_type, output_type, execution_type},
                                           shape);
    return make(handle, status, shape, work);
}
GPUKERNEL_EXPORT int cufftGetSizeMany(int handle, int rank, int* n, int* inembed, int istride, int idist,
                                      int* onembed, int ostride, int odist, int type, int batch,
                                      size_t* work) {
    Shape shape;
    return size_for(
        handle, shape_of<int>(rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch, shape),
        work);
}
GPUKERNEL_EXPORT int cufftGetSizeMany64(int handle, int rank, long long* n, long long* inembed,
                                        long long istride, long long idist, long long* onembed,
                                        long long ostride, long long odist, int type, long long batch,
                                        size_t* work) {
    Shape shape;
    return size_for(
        handle,
        shape_of<long long>(rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch, shape),
        work);
}
GPUKERNEL_EXPORT int cufftXtGetSizeMany(int handle, int rank, long long* n, long long* inembed,
                                        long long istride, long long idist, int input_type,
                                        long long* onembed, long long ostride, long long odist,
                                        int output_type, long long batch, size_t* work, int execution_type) {
    Shape shape;
    return size_for(handle,
                    shape_of<long long>({rank, n, inembed, istride, idist, onembed, ostride, odist, batch,
                                         input_type, output_type, execution_type},
                                        shape),
                    work);
}
GPUKERNEL_EXPORT int cufftEstimateMany(int rank, int* n, int* inembed, int istride, int idist, int* onembed,
                                       int ostride, int odist, int type, int batch, size_t* work) {
    Shape shape;
    return size(shape_of<int>(rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch, shape),
                work);
}

// --- execution ---

GPUKERNEL_EXPORT int cufftExecC2C(int plan, const void* input, void* output, int direction) {
    return run(plan, input, output, direction, C2C);
}
GPUKERNEL_EXPORT int cufftExecZ2Z(int plan, const void* input, void* output, int direction) {
    return run(plan, input, output, direction, Z2Z);
}
GPUKERNEL_EXPORT int cufftExecR2C(int plan, const void* input, void* output) {
    return run(plan, input, output, FORWARD, R2C);
}
GPUKERNEL_EXPORT int cufftExecD2Z(int plan, const void* input, void* output) {
    return run(plan, input, output, FORWARD, D2Z);
}
GPUKERNEL_EXPORT int cufftExecC2R(int plan, const void* input, void* output) {
    return run(plan, input, output, INVERSE, C2R);
}
GPUKERNEL_EXPORT int cufftExecZ2D(int plan, const void* input, void* output) {
    return run(plan, input, output, INVERSE, Z2D);
}
GPUKERNEL_EXPORT int cufftXtExec(int plan, const void* input, void* output, int direction) {
    return run(plan, input, output, direction, 0);
}

GPUKERNEL_EXPORT int cufftGetVersion(int* version) {
    if (!version) return INVALID_VALUE;
    *version = VERSION;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cufftGetProperty(int type, int* value) {
    if (!value || type < 0 || type > 2) return INVALID_VALUE;
    *value = type == 0 ? VERSION / 1000 : type == 1 ? VERSION / 100 % 10 : VERSION % 100;
    return SUCCESS;
}

#include "cufft_unsupported.inc"

}  // namespace gpukernel::libraries::cufft
