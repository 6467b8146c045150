define void @loop(ptr %args) #0 {
entry:
  %v0 = getelementptr i64, ptr %args, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr i64, ptr %args, i64 1
  %v3 = load ptr, ptr %v2
  %v4 = getelementptr i64, ptr %args, i64 2
  %v5 = load ptr, ptr %v4
  %v6 = getelementptr i64, ptr %args, i64 3
  %v7 = load ptr, ptr %v6
  %v8 = getelementptr i64, ptr %args, i64 4
  %v9 = load i64, ptr %v8
  %v10 = getelementptr i64, ptr %args, i64 5
  %v11 = load i64, ptr %v10
  %v12 = getelementptr i64, ptr %args, i64 6
  %v13 = load i64, ptr %v12
  %v14 = getelementptr i64, ptr %args, i64 7
  %v15 = load i64, ptr %v14
  %v16 = getelementptr i64, ptr %args, i64 8
  %v17 = load i64, ptr %v16
  %v18 = getelementptr i64, ptr %args, i64 9
  %v19 = load i64, ptr %v18
  %v20 = and i64 %v9, -16
  %v21 = sub i64 %v9, %v20
  %v22 = load float, ptr %v5, align 4
  br label %axis0
axis0:
  %i0 = phi i64 [0, %entry], [%n0, %end0]
  %v23 = icmp slt i64 %i0, %v11
  br i1 %v23, label %in0, label %exit
in0:
  %v24 = mul i64 %i0, %v13
  %v25 = getelementptr i8, ptr %v1, i64 %v24
  %v26 = mul i64 %i0, %v15
  %v27 = getelementptr i8, ptr %v3, i64 %v26
  %v28 = mul i64 %i0, %v17
  %v29 = getelementptr i8, ptr %v7, i64 %v28
  %v30 = insertelement <16 x i64> poison, i64 %v19, i64 0
  %v31 = shufflevector <16 x i64> %v30, <16 x i64> poison, <16 x i32> zeroinitializer
  %v32 = mul <16 x i64> %v31, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>
  br label %pass0
pass0:
  %pass0.k = phi i64 [0, %in0], [%pass0.next, %pass0.full]
  %v33 = icmp slt i64 %pass0.k, %v20
  br i1 %v33, label %pass0.full, label %pass0.end
pass0.full:
  %v34 = getelementptr float, ptr %v25, i64 %pass0.k
  %v35 = load <16 x float>, ptr %v34, align 4
  %v36 = mul i64 %pass0.k, %v19
  %v37 = getelementptr i8, ptr %v27, i64 %v36
  %v38 = getelementptr i8, ptr %v37, <16 x i64> %v32
  %v39 = call <16 x i16> @llvm.masked.gather.v16i16.v16p0(<16 x ptr> align 2 %v38, <16 x i1> splat (i1 true), <16 x i16> zeroinitializer)
  %v40 = zext <16 x i16> %v39 to <16 x i32>
  %v41 = shl <16 x i32> %v40, splat (i32 16)
  %v42 = bitcast <16 x i32> %v41 to <16 x float>
  %v43 = insertelement <16 x float> poison, float %v22, i64 0
  %v44 = shufflevector <16 x float> %v43, <16 x float> poison, <16 x i32> zeroinitializer
  %v45 = fmul <16 x float> %v44, %v42
  %v46 = fsub <16 x float> %v35, %v45
  %v47 = getelementptr float, ptr %v29, i64 %pass0.k
  store <16 x float> %v46, ptr %v47, align 4
  %pass0.next = add i64 %pass0.k, 16
  br label %pass0
pass0.end:
  %v48 = icmp ne i64 %v21, 0
  br i1 %v48, label %pass0.rest, label %pass0.done
pass0.rest:
  %v49 = insertelement <16 x i64> poison, i64 %v21, i64 0
  %v50 = shufflevector <16 x i64> %v49, <16 x i64> poison, <16 x i32> zeroinitializer
  %v51 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, %v50
  %v52 = getelementptr float, ptr %v25, i64 %v20
  %v53 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v52, <16 x i1> %v51, <16 x float> zeroinitializer)
  %v54 = mul i64 %v20, %v19
  %v55 = getelementptr i8, ptr %v27, i64 %v54
  %v56 = getelementptr i8, ptr %v55, <16 x i64> %v32
  %v57 = call <16 x i16> @llvm.masked.gather.v16i16.v16p0(<16 x ptr> align 2 %v56, <16 x i1> %v51, <16 x i16> zeroinitializer)
  %v58 = zext <16 x i16> %v57 to <16 x i32>
  %v59 = shl <16 x i32> %v58, splat (i32 16)
  %v60 = bitcast <16 x i32> %v59 to <16 x float>
  %v61 = insertelement <16 x float> poison, float %v22, i64 0
  %v62 = shufflevector <16 x float> %v61, <16 x float> poison, <16 x i32> zeroinitializer
  %v63 = fmul <16 x float> %v62, %v60
  %v64 = fsub <16 x float> %v53, %v63
  %v65 = getelementptr float, ptr %v29, i64 %v20
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v64, ptr align 4 %v65, <16 x i1> %v51)
  br label %pass0.done
pass0.done:
  br label %end0
end0:
  %n0 = add i64 %i0, 1
  br label %axis0
exit:
  ret void
}

declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare <16 x i16> @llvm.masked.gather.v16i16.v16p0(<16 x ptr>, <16 x i1>, <16 x i16>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)

attributes #0 = { nounwind "prefer-vector-width"="512" }
