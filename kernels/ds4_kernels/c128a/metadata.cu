// C128A metadata in CUDA C++ behind a plain C interface: pointers, sizes and a stream, no torch.
//
// A thread writes four columns at a time (16 bytes). Blocks run over tokens (x) and stretches of columns (y), so that
// one long row is spread over the whole chip. Only columns below `width` are written.

#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kColumns = 4;            // columns of one 16-byte store
constexpr int kThreads = 128;          // of one block, at most; more or fewer were not faster
constexpr int kManyStores = 1 << 18;   // 16-byte stores of a step from which on a thread does four, not two
constexpr int kNoEntry = -1;

struct Step {
  const int64_t* positions;        // [T]
  const int32_t* token_to_req;     // [T]
  const int32_t* block_table;      // [table_rows, table_pages], row stride table_stride
  const int64_t* slot_mapping;     // [T]
  int32_t* decode;                 // [N, capacity]
  int32_t* lens;                   // [N]
  int32_t* prefill;                // [N, capacity]
  int64_t table_rows, table_pages, table_stride, capacity;
  int32_t num_decode_tokens, num_query_tokens, width;
  int32_t ratio, page_size;
  int32_t ratio_shift, page_shift;  // valid where both are powers of two
  int32_t dcp_world_size, dcp_rank, dcp_interleave;
};

// How entry numbers become pages.
enum class Paging {
  kPairs,        // two entries a page, and pages can be loaded two at a time (8 bytes, aligned)
  kPowersOfTwo,  // ratio and page size are powers of two
  kAny,
};

// Entries that a token sees: whole groups of `ratio` tokens at or before its position, at most `width`.
template <Paging kPaging>
__device__ int seen_entries(const Step& s, int64_t position) {
  const int64_t most = static_cast<int64_t>(s.width) * s.ratio;  // below 2^31: checked by the caller
  const int64_t tokens = position < 0 ? 0 : (position >= most ? most : position + 1);
  const uint32_t count = static_cast<uint32_t>(tokens);
  return kPaging == Paging::kAny ? count / static_cast<uint32_t>(s.ratio) : count >> s.ratio_shift;
}

// How many of the first `seen` entries this rank owns. Entries are dealt out in rounds of world * interleave; a span
// of page * world entries gives each rank one page.
__device__ int kept_entries(const Step& s, int seen) {
  if (s.dcp_world_size == 1) return seen;
  const int span = s.page_size * s.dcp_world_size;
  const int in_span = seen % span;
  const int round = s.dcp_world_size * s.dcp_interleave;
  int share = in_span % round - s.dcp_rank * s.dcp_interleave;
  share = share < 0 ? 0 : (share > s.dcp_interleave ? s.dcp_interleave : share);
  return seen / span * s.page_size + in_span / round * s.dcp_interleave + share;
}

// Slots of four neighbouring columns; -1 from `limit` on. The k-th entry that a rank keeps lies in its k-th slot,
// whatever the world size.
template <Paging kPaging>
__device__ int4 slots(const Step& s, const int32_t* pages, int column, int limit) {
  if constexpr (kPaging == Paging::kPairs) {
    int2 pair = make_int2(0, 0);
    if (column < limit) pair = __ldg(reinterpret_cast<const int2*>(pages + column / 2));
    return make_int4(column < limit ? pair.x * 2 : kNoEntry, column + 1 < limit ? pair.x * 2 + 1 : kNoEntry,
                     column + 2 < limit ? pair.y * 2 : kNoEntry, column + 3 < limit ? pair.y * 2 + 1 : kNoEntry);
  } else {
    int value[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int entry = column + i;
      const int page = kPaging == Paging::kAny ? entry / s.page_size : entry >> s.page_shift;
      value[i] = entry < limit ? (__ldg(pages + page) - page) * s.page_size + entry : kNoEntry;
    }
    return make_int4(value[0], value[1], value[2], value[3]);
  }
}

__device__ int4 local_entries(int column, int seen) {
  return make_int4(column < seen ? column : kNoEntry, column + 1 < seen ? column + 1 : kNoEntry,
                   column + 2 < seen ? column + 2 : kNoEntry, column + 3 < seen ? column + 3 : kNoEntry);
}

template <Paging kPaging, int kStores>
__global__ void __launch_bounds__(kThreads) metadata_kernel(const __grid_constant__ Step s) {
  const int token = blockIdx.x;
  const int first = (blockIdx.y * kStores * blockDim.x + threadIdx.x) * kColumns;
  const int stride = blockDim.x * kColumns;
  const int64_t position = __ldg(s.positions + token);
  int4 value[kStores];
  int32_t* row;
  if (token < s.num_decode_tokens) {
    const int request = __ldg(s.token_to_req + token);
    const int64_t written = __ldg(s.slot_mapping + token);  // early: its latency hides behind the others'
    const int kept = kept_entries(s, seen_entries<kPaging>(s, position));
    const bool in_table = request >= 0 && request < s.table_rows;
    const int32_t* pages = s.block_table + (in_table ? request * s.table_stride : 0);
    const int limit = in_table ? min(static_cast<int64_t>(kept), s.table_pages * s.page_size) : 0;
#pragma unroll
    for (int i = 0; i < kStores; ++i) value[i] = slots<kPaging>(s, pages, first + i * stride, limit);
    row = s.decode + token * s.capacity;
    if (first == 0) {
      // Under DCP the write of a token's KV is rank-local, but every real query attends on every rank.
      const bool real = s.dcp_world_size == 1 ? written >= 0 : token < s.num_query_tokens;
      s.lens[token] = real ? kept : 0;
    }
  } else {
    const int seen = token < s.num_query_tokens ? seen_entries<kPaging>(s, position) : 0;
#pragma unroll
    for (int i = 0; i < kStores; ++i) value[i] = local_entries(first + i * stride, seen);
    row = s.prefill + (token - s.num_decode_tokens) * s.capacity;
  }
#pragma unroll
  for (int i = 0; i < kStores; ++i) {
    const int column = first + i * stride;  // width is a multiple of four: a store is inside or outside
    if (column < s.width) *reinterpret_cast<int4*>(row + column) = value[i];
  }
}

int log2_or_minus_one(int value) {
  int shift = 0;
  while ((1 << shift) < value) ++shift;
  return (1 << shift) == value ? shift : -1;
}

Paging paging_of(const Step& s) {
  if (s.ratio_shift < 0 || s.page_shift < 0) return Paging::kAny;
  const bool aligned = reinterpret_cast<uintptr_t>(s.block_table) % sizeof(int2) == 0 && s.table_stride % 2 == 0;
  const bool in_pairs = aligned && s.table_pages % 2 == 0;
  return s.page_size == 2 && in_pairs ? Paging::kPairs : Paging::kPowersOfTwo;
}

template <int kStores>
void launch(const Step& s, int num_tokens, cudaStream_t stream) {
  const int stores = s.width / kColumns;
  const int threads = stores < kThreads ? stores : kThreads;
  const dim3 grid(num_tokens, (stores + threads * kStores - 1) / (threads * kStores));
  switch (paging_of(s)) {
    case Paging::kPairs:
      metadata_kernel<Paging::kPairs, kStores><<<grid, threads, 0, stream>>>(s);
      break;
    case Paging::kPowersOfTwo:
      metadata_kernel<Paging::kPowersOfTwo, kStores><<<grid, threads, 0, stream>>>(s);
      break;
    case Paging::kAny:
      metadata_kernel<Paging::kAny, kStores><<<grid, threads, 0, stream>>>(s);
      break;
  }
}

}  // namespace

#define DS4_EXPORT extern "C" __attribute__((visibility("default")))

// Version of the call below; the loader refuses a library that was built for another one.
DS4_EXPORT int ds4_c128a_interface() { return 1; }

// What a return code of ds4_c128a_build means.
DS4_EXPORT const char* ds4_c128a_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

// Launches on `stream` of the current device. The caller has checked every size: width a multiple of 128, at most
// capacity, width * ratio below 2^31, rows 16-byte aligned. Returns a cudaError_t.
DS4_EXPORT int ds4_c128a_build(const int64_t* positions, const int32_t* token_to_req, const int32_t* block_table,
                               const int64_t* slot_mapping, int32_t* decode, int32_t* lens, int32_t* prefill,
                               int64_t table_rows, int64_t table_pages, int64_t table_stride, int64_t capacity,
                               int32_t num_tokens, int32_t num_decode_tokens, int32_t num_query_tokens, int32_t width,
                               int32_t ratio, int32_t page_size, int32_t dcp_world_size, int32_t dcp_rank,
                               int32_t dcp_interleave, void* stream) {
  if (num_tokens == 0) return cudaSuccess;
  const Step step{positions,
                  token_to_req,
                  block_table,
                  slot_mapping,
                  decode,
                  lens,
                  prefill,
                  table_rows,
                  table_pages,
                  table_stride,
                  capacity,
                  num_decode_tokens,
                  num_query_tokens,
                  width,
                  ratio,
                  page_size,
                  log2_or_minus_one(ratio),
                  log2_or_minus_one(page_size),
                  dcp_world_size,
                  dcp_rank,
                  dcp_interleave};
  if (static_cast<int64_t>(num_tokens) * width / kColumns >= kManyStores) {
    launch<4>(step, num_tokens, static_cast<cudaStream_t>(stream));
  } else {
    launch<2>(step, num_tokens, static_cast<cudaStream_t>(stream));
  }
  return cudaGetLastError();
}
