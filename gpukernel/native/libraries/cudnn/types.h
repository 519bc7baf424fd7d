// The numbers of NVIDIA's public cudnn_graph.h and cudnn_ops.h that program, worker and simulated library
// understand.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpukernel::libraries::cudnn {

enum Status : int {
    SUCCESS = 0,
    NOT_INITIALIZED = 1001,
    BAD_PARAM = 2000,
    INVALID_VALUE = BAD_PARAM,  // as generated code calls it
    NULL_POINTER = 2002,
    NOT_FINALIZED = 2004,
    NOT_SUPPORTED = 3000,
    INTERNAL_ERROR = 4000,
    ALLOC_FAILED = 4003,
    EXECUTION_FAILED = 5000,
};

enum DataType : int {
    FLOAT = 0,
    DOUBLE = 1,
    HALF = 2,
    INT8 = 3,
    INT32 = 4,
    UINT8 = 6,
    BFLOAT16 = 9,
    INT64 = 10,
    BOOLEAN = 11,
};

// Bytes of an element; 0 for a type that is not understood.
constexpr size_t element_bytes(int type) {
    switch (type) {
        case INT8:
        case UINT8:
        case BOOLEAN:
            return 1;
        case HALF:
        case BFLOAT16:
            return 2;
        case FLOAT:
        case INT32:
            return 4;
        case DOUBLE:
        case INT64:
            return 8;
        default:
            return 0;
    }
}
// Bytes of alpha and beta beside a tensor of that type.
constexpr size_t factor_bytes(int type) { return type == DOUBLE ? 8 : 4; }

// Kinds of descriptors of the backend API.
enum Kind : int {
    POINTWISE = 0,
    CONVOLUTION = 1,
    ENGINE = 2,
    ENGINE_CONFIG = 3,
    HEURISTICS = 4,
    PLAN = 5,
    KNOB_CHOICE = 7,
    KNOB_INFO = 8,
    OPERATION_CONVOLUTION_FORWARD = 10,
    OPERATION_CONVOLUTION_FILTER = 11,
    OPERATION_CONVOLUTION_DATA = 12,
    OPERATION_POINTWISE = 13,
    OPERATION_GRAPH = 15,
    VARIANT_PACK = 16,
    TENSOR = 17,
    MATMUL = 18,
    OPERATION_MATMUL = 19,
    REDUCTION = 21,
    OPERATION_REDUCTION = 22,
    RESAMPLE = 24,
    OPERATION_RESAMPLE_FORWARD = 25,
    OPERATION_RESAMPLE_BACKWARD = 26,
    OPERATION_NORM_FORWARD = 29,
    OPERATION_NORM_BACKWARD = 30,
    OPERATION_RESHAPE = 31,
    RNG = 32,
    OPERATION_RNG = 33,
    OPERATION_ATTENTION = 41,
    OPERATION_ATTENTION_BACKWARD = 43,
    OPERATION_BAND_MASK = 44,
    OPERATION_SOFTMAX = 45,
    MOST_KINDS = 51,
};

// Types of attributes.
enum AttributeType : int {
    TYPE_HANDLE = 0,
    TYPE_DATA = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_FLOAT = 4,
    TYPE_DOUBLE = 5,
    TYPE_POINTER = 6,
    TYPE_KNOB = 9,
    TYPE_NUMERICAL_NOTE = 11,
    TYPE_DESCRIPTOR = 15,
    TYPE_BEHAVIOR_NOTE = 19,
    TYPE_INT32 = 23,
    TYPE_CHAR = 24,
    TYPE_FRACTION = 26,
    MOST_ATTRIBUTE_TYPES = 34,
};
// Bytes of one element of an attribute; what is no other is an enumeration.
constexpr size_t attribute_bytes(int type) {
    switch (type) {
        case TYPE_BOOLEAN:
        case TYPE_CHAR:
            return 1;
        case TYPE_HANDLE:
        case TYPE_INT64:
        case TYPE_DOUBLE:
        case TYPE_POINTER:
        case TYPE_DESCRIPTOR:
            return 8;
        case TYPE_FRACTION:
            return 16;
        default:
            return type >= 0 && type < MOST_ATTRIBUTE_TYPES ? 4 : 0;
    }
}

// Attributes by their names.
enum Name : int {
    POINTWISE_MODE = 0,
    POINTWISE_RELU_LOWER = 3,
    POINTWISE_RELU_UPPER = 4,
    POINTWISE_RELU_SLOPE = 5,
    POINTWISE_ELU_ALPHA = 6,
    POINTWISE_SOFTPLUS_BETA = 7,
    POINTWISE_SWISH_BETA = 8,
    POINTWISE_AXIS = 9,
    CONVOLUTION_COMPUTE = 100,
    CONVOLUTION_MODE = 101,
    CONVOLUTION_DILATIONS = 102,
    CONVOLUTION_STRIDES = 103,
    CONVOLUTION_POST_PADDINGS = 104,
    CONVOLUTION_PRE_PADDINGS = 105,
    CONVOLUTION_SPATIAL_DIMS = 106,
    HEURISTICS_MODE = 200,
    HEURISTICS_GRAPH = 201,
    HEURISTICS_RESULTS = 202,
    CONFIG_ENGINE = 300,
    CONFIG_KNOBS = 302,
    CONFIG_WORKSPACE = 303,
    PLAN_HANDLE = 400,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE = 402,
    PLAN_JSON = 405,
    KNOB_TYPE = 600,
    KNOB_VALUE = 601,
    FORWARD_ALPHA = 700,
    FORWARD_BETA = 701,
    FORWARD_CONVOLUTION = 702,
    FORWARD_W = 703,
    FORWARD_X = 704,
    FORWARD_Y = 705,
    DATA_ALPHA = 706,
    DATA_BETA = 707,
    DATA_CONVOLUTION = 708,
    DATA_W = 709,
    DATA_DX = 710,
    DATA_DY = 711,
    FILTER_ALPHA = 712,
    FILTER_BETA = 713,
    FILTER_CONVOLUTION = 714,
    FILTER_DW = 715,
    FILTER_X = 716,
    FILTER_DY = 717,
    POINTWISE_DESCRIPTOR = 750,
    POINTWISE_X = 751,
    POINTWISE_B = 752,
    POINTWISE_Y = 753,
    POINTWISE_ALPHA1 = 754,
    POINTWISE_ALPHA2 = 755,
    POINTWISE_DX = 756,
    POINTWISE_DY = 757,
    POINTWISE_T = 758,
    GRAPH_HANDLE = 800,
    GRAPH_OPERATIONS = 801,
    GRAPH_ENGINES = 802,
    TENSOR_TYPE = 901,
    TENSOR_DIMENSIONS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_VECTOR_COUNT = 904,
    TENSOR_ID = 906,
    TENSOR_VIRTUAL = 907,
    TENSOR_BY_VALUE = 908,
    TENSOR_REORDERING = 909,
    TENSOR_CONSTANT = 910,
    TENSOR_RAGGED = 913,
    PACK_IDS = 1000,
    PACK_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    PACK_OVERRIDE_IDS = 1010,
    KNOB_INFO_FIRST = 1200,
    ENGINE_GRAPH = 1300,
    ENGINE_INDEX = 1301,
    ENGINE_KNOBS = 1302,
    ENGINE_NUMERICAL_NOTES = 1303,
    ENGINE_BEHAVIOR_NOTES = 1305,
    MATMUL_COMPUTE = 1500,
    MATMUL_PADDING = 1503,
    MATMUL_A = 1520,
    MATMUL_B = 1521,
    MATMUL_C = 1522,
    MATMUL_DESCRIPTOR = 1523,
    MATMUL_M = 1525,
    MATMUL_N = 1526,
    MATMUL_K = 1527,
    REDUCTION_OPERATOR = 1600,
    REDUCTION_X = 1610,
    REDUCTION_Y = 1611,
    REDUCTION_DESCRIPTOR = 1612,
    RESHAPE_X = 2200,
    RESHAPE_Y = 2201,
    RESHAPE_MODE = 2202,
    RNG_DISTRIBUTION = 2300,
    RNG_MEAN = 2301,
    RNG_DEVIATION = 2302,
    RNG_MOST = 2303,
    RNG_LEAST = 2304,
    RNG_PROBABILITY = 2305,
    OPERATION_RNG_Y = 2310,
    OPERATION_RNG_SEED = 2311,
    OPERATION_RNG_DESCRIPTOR = 2312,
    OPERATION_RNG_OFFSET = 2313,
    ATTENTION_Q = 2800,
    ATTENTION_K = 2801,
    ATTENTION_V = 2802,
    ATTENTION_O = 2803,
    ATTENTION_STATISTICS = 2804,
    ATTENTION_SCALE = 2805,
    ATTENTION_LENGTHS_Q = 2809,
    ATTENTION_LENGTHS_KV = 2810,
    ATTENTION_GRAPH = 2811,
    ATTENTION_GRAPH_INPUT = 2812,
    ATTENTION_GRAPH_OUTPUT = 2813,
    ATTENTION_SOFTMAX = 2814,
    ATTENTION_SEED = 2815,
    ATTENTION_OFFSET = 2816,
    ATTENTION_MASK_DRAWN = 2817,
    ATTENTION_DROPOUT = 2818,
    ATTENTION_UNFUSED = 2819,
    BACKWARD_Q = 2851,
    BACKWARD_K = 2852,
    BACKWARD_V = 2853,
    BACKWARD_O = 2854,
    BACKWARD_STATISTICS = 2855,
    BACKWARD_SCALE = 2856,
    BACKWARD_LENGTHS_Q = 2857,
    BACKWARD_LENGTHS_KV = 2858,
    BACKWARD_DQ = 2859,
    BACKWARD_DK = 2860,
    BACKWARD_DV = 2861,
    BACKWARD_DO = 2862,
    MASK_X = 3000,
    MASK_LENGTHS_KV = 3001,
    MASK_LENGTHS_Q = 3002,
    MASK_LEFT = 3003,
    MASK_SHIFT_RIGHT = 3004,
    MASK_B = 3005,
    MASK_Y = 3006,
    MASK_COMPARISON = 3007,
    SOFTMAX_X = 3100,
    SOFTMAX_Y = 3101,
    SOFTMAX_STATISTICS = 3102,
    SOFTMAX_LARGEST = 3103,
    SOFTMAX_SUM = 3104,
    SOFTMAX_SINK = 3105,
};

// The functions of this library that no table has: questions about an operation graph, and its execution.
enum Function : uint32_t {
    GRAPH = 0xff00,
    HEURISTIC = 0xff01,
    ENGINE_NOTES = 0xff02,
    MAKE_PLAN = 0xff03,
    EXECUTE = 0xff04,
    RECURRENT_SIZES = 0xff05,
    RECURRENT_WEIGHTS = 0xff06,
    DROPOUT_STATES = 0xff07,
    DROPOUT_SET = 0xff08,
};

constexpr int MOST_DIMENSIONS = 8;
constexpr size_t MOST_GRAPH_WORDS = 16384, MOST_TENSORS = 256, MOST_CONFIGS = 256, MOST_KNOBS = 64,
                 MOST_NOTES = 16;

}  // namespace gpukernel::libraries::cudnn
