/* Decodes a JPEG held in memory with libjpeg-turbo. Its errors are jumps, which must not cross Rust's frames: they begin
   and end in this file. */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdio.h>

#define JPEG_INTERNALS
#include "jpeglib.h"
#include "jdct.h"
#include "jdsample.h"

/* Each scan of a progressive file costs a pass over all its pixels, however few bytes it has. */
#define MOST_SCANS 500

enum { DECODED, REFUSED, TRUNCATED, TOO_MANY_SCANS, OTHER_SHAPE };

struct request {
  const uint8_t *data;
  size_t size;
  uint8_t *pixels; /* height * width * components bytes */
  uint32_t width, height, components;
  /* Filled in: */
  uint32_t rows;
  size_t position;
  char message[JMSG_LENGTH_MAX];
  uint32_t plain; /* whether to leave vector code out, for tests */
};

struct decoder {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf stopped;
  int outcome;
  char *message;
};

static void stop(j_common_ptr jpeg) {
  struct decoder *decoder = (struct decoder *)jpeg;
  jpeg->err->format_message(jpeg, decoder->message);
  decoder->outcome = REFUSED;
  longjmp(decoder->stopped, 1);
}

static void count_scans(j_common_ptr jpeg) {
  struct decoder *decoder = (struct decoder *)jpeg;
  if (decoder->jpeg.input_scan_number <= MOST_SCANS) return;
  decoder->outcome = TOO_MANY_SCANS;
  longjmp(decoder->stopped, 1);
}

static void print_nothing(j_common_ptr jpeg) { (void)jpeg; }

static void do_nothing(j_decompress_ptr jpeg) { (void)jpeg; }

/* All the bytes are there from the beginning: there are never more. libjpeg then returns early. */
static boolean no_more_bytes(j_decompress_ptr jpeg) {
  (void)jpeg;
  return FALSE;
}

static void skip_bytes(j_decompress_ptr jpeg, long count) {
  struct jpeg_source_mgr *source = jpeg->src;
  size_t skipped = count < 0 ? 0 : (size_t)count;
  if (skipped > source->bytes_in_buffer) skipped = source->bytes_in_buffer;
  source->next_input_byte += skipped;
  source->bytes_in_buffer -= skipped;
}

#if defined(__x86_64__)
/* src/jpeg_kernels.rs */
bool gristmill_jpeg_transform(const int16_t *coefficients, const int *factors, uint8_t *const *rows, size_t column);
void gristmill_jpeg_to_rgb(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, uint8_t *pixels, size_t width);
void gristmill_jpeg_widen(const uint8_t *samples, uint8_t *wide, size_t width);
void gristmill_jpeg_enlarge(const uint8_t *near, const uint8_t *far, uint8_t *wide, size_t width);

static void transform(j_decompress_ptr jpeg, jpeg_component_info *component, JCOEFPTR coefficients, JSAMPARRAY rows,
                      JDIMENSION column) {
  if (!gristmill_jpeg_transform(coefficients, component->dct_table, rows, column))
    jpeg_idct_islow(jpeg, component, coefficients, rows, column);
}

static void to_rgb(j_decompress_ptr jpeg, JSAMPIMAGE samples, JDIMENSION row, JSAMPARRAY pixels, int count) {
  for (int i = 0; i < count; i++, row++)
    gristmill_jpeg_to_rgb(samples[0][row], samples[1][row], samples[2][row], pixels[i], jpeg->output_width);
}

static void widen(j_decompress_ptr jpeg, jpeg_component_info *component, JSAMPARRAY samples, JSAMPARRAY *wide) {
  for (int row = 0; row < jpeg->max_v_samp_factor; row++)
    gristmill_jpeg_widen(samples[row], (*wide)[row], component->downsampled_width);
}

static void enlarge(j_decompress_ptr jpeg, jpeg_component_info *component, JSAMPARRAY samples, JSAMPARRAY *wide) {
  for (int row = 0; row < jpeg->max_v_samp_factor; row++) {
    JSAMPARRAY near = samples + row / 2;
    gristmill_jpeg_enlarge(*near, near[row % 2 == 0 ? -1 : 1], (*wide)[row], component->downsampled_width);
  }
}

/* Puts them in place of the functions in C where libjpeg would have chosen its own vector code. */
static void use_vector_code(j_decompress_ptr jpeg) {
  my_upsample_ptr upsampler = (my_upsample_ptr)jpeg->upsample;
  if (jpeg->out_color_space == JCS_RGB && jpeg->jpeg_color_space == JCS_YCbCr)
    jpeg->cconvert->color_convert = to_rgb;
  for (int i = 0; i < jpeg->num_components; i++) {
    jpeg_component_info *component = &jpeg->comp_info[i];
    int wider = component->h_samp_factor * 2 == jpeg->max_h_samp_factor && component->downsampled_width > 2;
    jpeg->idct->inverse_DCT[i] = transform;
    if (wider && component->v_samp_factor == jpeg->max_v_samp_factor) upsampler->methods[i] = widen;
    if (wider && component->v_samp_factor * 2 == jpeg->max_v_samp_factor) upsampler->methods[i] = enlarge;
  }
}
#else
/* libjpeg has its own. */
static void use_vector_code(j_decompress_ptr jpeg) { (void)jpeg; }
#endif

static int decode(struct decoder *decoder, struct request *request) {
  j_decompress_ptr jpeg = &decoder->jpeg;
  int header;
  do {
    header = jpeg_read_header(jpeg, FALSE);
  } while (header == JPEG_HEADER_TABLES_ONLY);
  if (header == JPEG_SUSPENDED) return TRUNCATED;
  jpeg->out_color_space = request->components == 1 ? JCS_GRAYSCALE : request->components == 3 ? JCS_RGB : JCS_CMYK;
  if (!jpeg_start_decompress(jpeg)) return TRUNCATED;
  if (jpeg->output_width != request->width || jpeg->output_height != request->height ||
      (uint32_t)jpeg->output_components != request->components)
    return OTHER_SHAPE;
  if (!request->plain) use_vector_code(jpeg);
  while (jpeg->output_scanline < jpeg->output_height) {
    JSAMPROW row = request->pixels + (size_t)jpeg->output_scanline * request->width * request->components;
    if (jpeg_read_scanlines(jpeg, &row, 1) != 1) return TRUNCATED;
  }
  /* What follows the last row is not looked at. */
  return DECODED;
}

int gristmill_jpeg_decode(struct request *request);
int gristmill_jpeg_has_vector_code(void);

/* Inside libjpeg-turbo: whether it has vector code for the inverse transform on this processor. */
int jsimd_can_idct_islow(void);

int gristmill_jpeg_has_vector_code(void) { return jsimd_can_idct_islow(); }

int gristmill_jpeg_decode(struct request *request) {
  struct decoder decoder = {0};
  decoder.message = request->message;
  decoder.jpeg.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = stop;
  decoder.errors.output_message = print_nothing;
  if (setjmp(decoder.stopped) == 0) {
    jpeg_create_decompress(&decoder.jpeg);
    decoder.progress.progress_monitor = count_scans;
    decoder.jpeg.progress = &decoder.progress;
    decoder.source.init_source = do_nothing;
    decoder.source.fill_input_buffer = no_more_bytes;
    decoder.source.skip_input_data = skip_bytes;
    decoder.source.resync_to_restart = jpeg_resync_to_restart;
    decoder.source.term_source = do_nothing;
    decoder.source.next_input_byte = request->data;
    decoder.source.bytes_in_buffer = request->size;
    decoder.jpeg.src = &decoder.source;
    decoder.outcome = decode(&decoder, request);
  }
  request->rows = decoder.jpeg.output_scanline;
  request->position = request->size - decoder.source.bytes_in_buffer;
  jpeg_destroy_decompress(&decoder.jpeg);
  return decoder.outcome;
}
